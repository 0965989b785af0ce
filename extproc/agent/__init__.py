"""Runs beside backends and publishes their state."""
