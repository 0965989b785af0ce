"""Limits of tenants and models: requests and tokens a minute, requests at once."""
