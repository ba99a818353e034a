"""Tables of HTTP idempotency, circuit breakers and webhook endpoints."""
