"""The Envoy side: configuration built from typed messages."""
