"""Measurements of what asking costs."""
