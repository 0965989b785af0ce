"""The measurement through a real Envoy: its pure parts, its load generator, and a guard against regressions."""
