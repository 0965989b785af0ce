"""Engines: one file each turns an engine's own pages into the instance record."""
