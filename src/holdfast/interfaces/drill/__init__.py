"""Failure drills: something is broken on purpose, in a scratch store, and what Holdfast promises then is looked at."""
