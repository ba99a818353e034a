"""`/metrics` for Prometheus: as an ASGI app to mount, and as a small server beside a worker."""
