"""Exceptions as verdicts, reports and fingerprints."""
