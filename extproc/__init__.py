"""Inference router for Envoy: sends each LLM request to the instance that completes it at the least cost."""

__version__ = "0.1.0"
