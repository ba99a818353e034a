"""Calling out: retries, service clients, circuit breakers."""
