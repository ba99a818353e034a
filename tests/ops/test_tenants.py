"""Tenants: what waits, runs and failed for each, exactly in a small store and estimated in a large one."""

import pytest

from holdfast.core.change import DeadLetter
from holdfast.core.errors import ConfigurationError, Refused
from holdfast.core.flow import FlowSettings, key_rule
from holdfast.core.redaction.redact import Redaction
from holdfast.ops.queries import tenants
from holdfast.ops.service import Operations
from holdfast.stores.admin.redaction import declare
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from holdfast.stores.protocol import Store
from tests.support.builders import claim_all, failure, finish, message, put, register_consumers

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


async def _publish(store: Store, tenant: str | None, count: int) -> None:
    headers = {} if tenant is None else {"tenant": tenant, "org_id": f"org-{tenant}", "token": "x"}
    body = {"customer": {"id": tenant}, "card": "4111"}
    await put(store, *(message(payload=body, headers=headers) for _ in range(count)))


async def _shop(store: Store) -> None:
    """Four dead letters of acme, one of globex running, waiting ones of acme, of globex and without a tenant."""
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    await _publish(store, "acme", 4)
    for claimed in await claim_all(store, consumers=["billing"]):
        await finish(store, claimed, DeadLetter(), error=failure())
    await _publish(store, "globex", 1)
    await claim_all(store, consumers=["billing"])
    await _publish(store, None, 2)


async def test_the_deliveries_of_each_tenant_are_counted(store: Store, ops: Operations) -> None:
    await _shop(store)
    page = await ops.tenants()
    assert page.is_exact
    assert page.by == "header:tenant"
    assert page.total == page.sampled == 14
    rows = {one.tenant: (one.pending, one.in_flight, one.failed) for one in page.tenants}
    assert rows == {"acme": (4, 0, 4), None: (4, 0, 0), "globex": (1, 1, 0)}
    assert page.tenants[0].tenant == "acme"
    one = await ops.tenants(tenant="acme")
    assert {row.consumer: (row.pending, row.failed) for row in one.consumers} == {"billing": (0, 4), "mail": (4, 0)}
    assert [row.tenant for row in one.tenants] == ["acme"]
    assert {row.consumer for row in (await ops.tenants(tenant="")).consumers} == {"billing", "mail"}
    other = await ops.tenants(by="header:org_id")
    assert {row.tenant for row in other.tenants} == {"org-acme", "org-globex", None}


async def test_a_large_store_is_estimated_from_a_bounded_sample(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "_SAMPLE", 10)
    monkeypatch.setattr(tenants, "_LEAST", 1)
    await register_consumers(store, {"billing": ["order.placed"]})
    for n in range(20):
        await _publish(store, ("acme", "globex")[n % 2], 2)
    page = await ops.tenants()
    assert (page.sampled, page.total, page.is_exact) == (10, 40, False)
    assert sum(one.pending for one in page.tenants) == 40
    assert all(16 <= one.pending <= 24 for one in page.tenants)


async def test_a_payload_field_is_a_tenant_only_if_a_consumer_has_it_as_its_key(store: Store, ops: Operations) -> None:
    await _shop(store)
    with pytest.raises(Refused, match="not the key of a consumer"):
        await ops.tenants(by="customer.id")
    keyed = FlowSettings(key=key_rule("limit", "customer.id"), limit=2, limit_by_key=True)
    await store.run(
        register([Declaration("billing", flow=keyed.text)], [EventSubscription("order.placed", "billing")], 0)
    )
    page = await ops.tenants(by="customer.id")
    assert page.choices == ("header:tenant", "customer.id")
    assert page.keyed == ("billing",)
    assert {one.tenant for one in page.tenants} == {"acme", "globex", None}
    await store.run(declare([Redaction("order.*", "customer")]))
    with pytest.raises(Refused, match="redacted"):
        await ops.tenants(by="customer.id")


async def test_a_secret_header_is_not_shown(store: Store, ops: Operations) -> None:
    await _shop(store)
    with pytest.raises(Refused, match="redacted"):
        await ops.tenants(by="header:token")
    for wrong in ("header:", "a b"):
        with pytest.raises(ConfigurationError):
            await ops.tenants(by=wrong)
