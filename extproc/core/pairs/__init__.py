"""Prefill on one instance, decode on another: which pair, and how the two learn of each other."""
