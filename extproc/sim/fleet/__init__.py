"""A described fleet, what happens to it, and its run on a virtual clock."""
