"""The service beside the core's scaling: looks, tells, and has instances started and stopped."""
