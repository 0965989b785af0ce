"""Rules that say how many instances a simulated fleet has: ours, and those that people use today."""
