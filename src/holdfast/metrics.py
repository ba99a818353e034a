"""Prometheus metrics in your application: `api.mount("/metrics", metrics_app(hf))`.

A worker serves its metrics with `holdfast worker --metrics-port 9100`.
"""

from holdfast.interfaces.metrics.server import metrics_app

__all__ = ["metrics_app"]
