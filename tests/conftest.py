"""Settings and servers that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Nothing here passes or fails by wall time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
