"""When the fleet has no room that would serve a request well: who is held, who is let go first, who is shed."""
