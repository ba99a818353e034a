"""Metrics for Prometheus in an application of yours: `api.mount("/metrics", metrics_app(hf))`.

A worker tells its own with `holdfast worker --metrics-port 9100`.
"""

from holdfast.interfaces.metrics.server import metrics_app

__all__ = ["metrics_app"]
