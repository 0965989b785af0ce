"""How many instances a fleet needs, early enough for their start: long windows, never a single request."""
