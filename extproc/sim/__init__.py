"""Simulated inference engines with the physics of real ones: one in real time, or a fleet on a virtual clock."""
