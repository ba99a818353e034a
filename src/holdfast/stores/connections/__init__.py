"""Callers' connections: adapters for drivers and frameworks, and the checks before a write joins their transaction."""
