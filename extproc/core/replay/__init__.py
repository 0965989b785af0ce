"""Decisions that can be made again: what one looked at as plain values, and a snapshot made from them."""
