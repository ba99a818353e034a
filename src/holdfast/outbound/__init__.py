"""Calls to other services: retries, HTTP service clients, circuit breakers and webhooks.

- `retry`: `with_retry`; `retry_state` decides after each failure, `budget` limits the share of retries.
- `client`: `ServiceClient`; `service` has the parts that the async and the blocking client share, `response` the result, `transport` the
  network backends.
- `breaker`: `CircuitBreaker`; its state is in `circuits` (memory, store) or `redis_circuits`; `failure_classification` decides what counts.
- `webhooks`: events posted to endpoints, signed and rate-limited per endpoint.

A circuit: closed -> open (after failures) -> half-open (one probe) -> closed, or open again.
"""
