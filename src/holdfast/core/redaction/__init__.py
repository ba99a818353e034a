"""Removing secrets from text."""
