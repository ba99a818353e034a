"""Correlation ids, trace context, log fields and metrics as values."""
