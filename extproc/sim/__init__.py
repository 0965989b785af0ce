"""Simulated inference engines with the batch physics of real ones."""
