"""The control plane: what Envoy shall know of the fleet, and how it is told."""
