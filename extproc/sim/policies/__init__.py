"""Routing rules behind one interface: ours, the rivals, the oracle."""
