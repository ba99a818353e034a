"""Doing a thing once though it is asked for twice."""
