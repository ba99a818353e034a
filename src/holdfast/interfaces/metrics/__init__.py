"""Prometheus metrics over HTTP: an ASGI app to mount, and a small server for a worker process."""
