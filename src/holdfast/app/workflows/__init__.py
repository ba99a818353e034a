"""Workflows as users declare them, and the handles of their runs."""
