"""Runs the workers of an app, in this process or in several."""
