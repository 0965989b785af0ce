"""What asking costs through a real Envoy, beside Envoy alone and beside a do-nothing service, pair by pair."""
