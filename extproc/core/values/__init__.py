"""Values that a decision is about: instance, request, decision, outcome; frozen, without behaviour of their own."""
