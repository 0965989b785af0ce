"""Which instances can serve a request at all: hard constraints and limits, with reasons."""
