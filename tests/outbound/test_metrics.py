"""Metrics of calls to other services: by service, operation and outcome, with a bound on the number of series."""

import pytest

from holdfast import CircuitBreaker, CircuitOpen, RetryPolicy, ServiceRefused
from holdfast.core.telemetry.metric import Distribution
from holdfast.engine.telemetry.meter import OTHERS, Meter
from tests.outbound.loopback import Reply, Reset
from tests.outbound.test_client import Colour, client  # noqa: F401 - a fixture


def counts(meter: Meter) -> dict[tuple[str, str, str], float | Distribution]:
    (family,) = [one for one in meter.families() if one.name == "holdfast_calls_total"]
    return {(s.labels["service"], s.labels["operation"], s.labels["outcome"]): s.value for s in family.samples}


def observations(meter: Meter, operation: str) -> int:
    (family,) = [one for one in meter.families() if one.name == "holdfast_call_seconds"]
    (value,) = [one.value for one in family.samples if one.labels["operation"] == operation]
    assert isinstance(value, Distribution)
    return sum(value.counts)


def test_each_attempt_is_counted_by_service_operation_and_outcome(client: Colour) -> None:  # noqa: F811
    meter = Meter()
    billing = client(name="billing", meter=meter)
    client.server.plays(Reply(503), Reset(), Reply(200, b"7"), Reply(404))
    billing.get("/invoices/7", operation="get_invoice")
    with pytest.raises(ServiceRefused):
        billing.get("/invoices/8")
    assert counts(meter) == {
        ("billing", "get_invoice", "server_error"): 1,
        ("billing", "get_invoice", "no_response"): 1,
        ("billing", "get_invoice", "success"): 1,
        ("billing", "GET", "client_error"): 1,
        ("billing", "GET", "success"): 0,
    }
    assert (observations(meter, "get_invoice"), observations(meter, "GET")) == (3, 1)


def test_a_call_that_the_circuit_rejects_is_counted(client: Colour) -> None:  # noqa: F811
    meter = Meter()
    breaker = CircuitBreaker("billing", threshold=1)
    billing = client(name="billing", meter=meter, breaker=breaker, policy=RetryPolicy.none())
    client.server.plays(Reply(503))
    for _ in range(2):
        with pytest.raises((ServiceRefused, CircuitOpen)):
            billing.get("/x", operation="x")
    found = counts(meter)
    assert (found["billing", "x", "server_error"], found["billing", "x", "circuit_open"]) == (1, 1)


def test_the_number_of_series_is_bounded() -> None:
    meter = Meter()
    for n in range(700):
        meter.called("billing", f"get_{n}", "success", 0.01)
    found = counts(meter)
    assert len(found) == 501
    assert found[OTHERS, OTHERS, "success"] == 200
