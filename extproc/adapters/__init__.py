"""The outside world: each file is the one place that touches its library."""
