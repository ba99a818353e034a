"""Webhooks: signed events, posted to external endpoints. Each endpoint has its rate limit and circuit.

`dispatcher` delivers one event. It uses `rate_limiter`, `circuits`, `signature`, `sender` (HTTP) and `ssrf` (address checks).
"""
