"""Prometheus metrics over HTTP: an ASGI app to mount, and a small server for a worker process.

The server also answers `/healthz` and `/readyz`. It shares threads and file descriptors with the worker, so it limits
connections and their duration.
"""
