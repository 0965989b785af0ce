"""The cost of a request on an instance, in seconds, term by term."""
