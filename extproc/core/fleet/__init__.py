"""The router's own copy of the fleet, and how its machines lie to each other."""
