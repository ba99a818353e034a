"""Webhooks: events posted to other people's servers, signed, each endpoint for itself.

`dispatcher.py` takes one delivery to its endpoint; the other modules are what it needs for that.
"""
