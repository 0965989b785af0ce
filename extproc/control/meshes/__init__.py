"""The Envoy side as resources of products that run Envoy: the bootstrap's typed messages, cut to what each lets in."""
