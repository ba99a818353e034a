"""New endpoints: checked before they are stored, and stored with their caller's transaction or not at all."""

import asyncio
import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from holdfast import Holdfast, correlate
from holdfast.core.circuit import Circuit, Result
from holdfast.core.delivery import Status
from holdfast.core.errors import AddressRefused, ConfigurationError, HoldfastError, InvalidName, NotFound
from holdfast.core.flow import stored_flow
from holdfast.outbound.breaker import CircuitBreaker
from holdfast.outbound.webhooks.circuits import EndpointCircuits
from holdfast.outbound.webhooks.concurrency_limiter import ConcurrencyLimiter
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.integrations.breaker import StoredBreaker
from holdfast.stores.messages.registry import consumers
from holdfast.stores.migration import migrations
from tests.support.apps import MakeApp
from tests.support.builders import sql
from tests.support.worker import all_of, drain, only
from tests.webhooks.receiver import LOOPBACK, Receiver

URL = "https://acme.test/in"


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("wanted", "error", "word"),
    [
        ({"events": []}, ConfigurationError, "events"),
        ({"events": "order.*"}, ConfigurationError, "list"),
        ({"events": ["order..placed"]}, InvalidName, "pattern"),
        ({"events": ["*.placed"]}, InvalidName, "pattern"),
        ({"events": [f"a{n}" for n in range(51)]}, ConfigurationError, "51 event types"),
        ({"tenant": "a b"}, InvalidName, "tenant"),
        ({"tenant": ""}, InvalidName, "tenant"),
        ({"secret": "hunter2"}, ConfigurationError, "whsec_"),
        ({"rate": 0}, ConfigurationError, "rate"),
        ({"rate": -1}, ConfigurationError, "rate"),
        ({"rate": float("nan")}, ConfigurationError, "rate"),
        ({"rate": "fast"}, ConfigurationError, "rate"),
        ({"rate": "0/1s"}, ConfigurationError, "rate"),
        ({"order": "yes"}, ConfigurationError, "order"),
        ({"concurrency": 0}, ConfigurationError, "concurrency"),
        ({"concurrency": 1.5}, ConfigurationError, "concurrency"),
        ({"headers": {"host": "evil"}}, ConfigurationError, "host"),
        ({"headers": {"Content-Length": "1"}}, ConfigurationError, "Content-Length"),
        ({"headers": {"webhook-signature": "v1,x"}}, ConfigurationError, "webhook-signature"),
        ({"headers": {"a b": "x"}}, ConfigurationError, "a b"),
        ({"headers": {"x": "s3cret\r\nhost: evil"}}, ConfigurationError, "header x"),
        ({"headers": {"x": "é"}}, ConfigurationError, "header x"),
        ({"headers": {f"x{n}": "" for n in range(21)}}, ConfigurationError, "21 headers"),
        ({"queue": "a.b"}, InvalidName, "queue"),
        ({"priority": 9}, ConfigurationError, "priority"),
    ],
)
async def test_what_is_wrong_with_an_endpoint_is_said_before_it_is_stored(
    hf: Holdfast, wanted: dict[str, Any], error: type[HoldfastError], word: str
) -> None:
    with pytest.raises(error, match=word) as refused:
        await hf.webhooks.add(URL, **{"events": ["order.*"], "conn": None} | wanted)
    assert "s3cret" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_an_endpoint_inside_is_refused_unless_the_app_or_the_environment_allows_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app()
    with pytest.raises(ConfigurationError, match="encrypted"):
        await hf.webhooks.add("http://acme.test/in", events=["*"], conn=None)
    with pytest.raises(AddressRefused):
        await hf.webhooks.add("https://10.0.0.1/in", events=["*"], conn=None)
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", "10.0.0.0/24, fd00::/8")
    monkeypatch.setenv("HOLDFAST_WEBHOOK_HTTP", "1")
    assert (await hf.webhooks.add("http://10.0.0.1/in", events=["*"], conn=None)).id
    with pytest.raises(AddressRefused):
        await hf.webhooks.add("http://10.0.1.1/in", events=["*"], conn=None)
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", "nonsense")
    with pytest.raises(ConfigurationError, match="nonsense"):
        await hf.webhooks.add("http://10.0.0.1/in", events=["*"], conn=None)


@pytest.mark.parametrize("given", [{"timeout": 0}, {"timeout": "soon"}, {"cooldown": -1}, {"allow_networks": ("x",)}])
def test_options_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WebhookOptions(**given)


async def transacted(hf: Holdfast, receiver: Receiver, *, commit: bool, publish: bool) -> None:
    """Adds an endpoint in a transaction of the caller's own, and maybe publishes to it there."""

    def blocking() -> None:
        conn: Any
        if hf.dsn.startswith("sqlite"):
            conn = sqlite3.connect(hf.dsn.removeprefix("sqlite:///"))
        else:
            conn = psycopg.connect(hf.dsn)
        try:
            hf.webhooks.sync.add(receiver.url, events=["order.*"], tenant="acme", conn=conn)
            if publish:
                hf.sync.publish("order.placed", {"id": 1}, conn=conn, headers={"tenant": "acme"})
            if commit:
                conn.commit()
            else:
                conn.rollback()
        finally:
            conn.close()

    await asyncio.to_thread(blocking)


async def test_an_endpoint_is_there_if_and_only_if_its_transaction_commits(hf: Holdfast, receiver: Receiver) -> None:
    await hf.publish("order.placed", {"id": 0}, conn=None)
    await transacted(hf, receiver, commit=False, publish=True)
    assert await hf.ops.webhooks() == []
    with correlate(tenant="acme"):
        await hf.publish("order.placed", {"id": 2}, conn=None)
    assert await all_of(hf) == [], "what was rolled back is not in the producer's list of subscriptions"
    await transacted(hf, receiver, commit=True, publish=True)
    with correlate(tenant="acme"):
        await hf.publish("order.placed", {"id": 3}, conn=None)
    await drain(hf)
    assert sorted(request.json["data"]["id"] for request in receiver.requests) == [1, 3]


async def test_an_epoch_that_was_rolled_back_and_taken_again_hides_no_endpoint(
    hf: Holdfast, receiver: Receiver
) -> None:
    """The publisher saw an epoch that did not last; the next registration has the same one."""
    await hf.publish("order.placed", {"id": 0}, conn=None)
    await transacted(hf, receiver, commit=False, publish=True)
    other = Holdfast(hf.dsn, webhooks=LOOPBACK)
    await other.webhooks.add(receiver.url, events=["order.*"], conn=None)
    await hf.publish("order.placed", {"id": 4}, conn=None)
    assert len(await all_of(hf)) == 1
    await other.close()


async def test_lists_are_remembered_again_once_the_commit_is_known(hf: Holdfast, receiver: Receiver) -> None:
    await transacted(hf, receiver, commit=True, publish=True)
    fanout = hf._runtime.producer._fanout
    assert fanout.uncommitted
    hf._runtime.producer._confirmed_at = float("-inf")
    await hf.publish("order.placed", {"id": 5}, conn=None, headers={"tenant": "acme"})
    assert not fanout.uncommitted
    assert fanout.current is not None


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_a_transaction_that_looks_at_an_old_snapshot_is_refused(hf: Holdfast, receiver: Receiver) -> None:
    async with await psycopg.AsyncConnection.connect(hf.dsn) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        with pytest.raises(ConfigurationError, match="READ COMMITTED"):
            await hf.webhooks.add(receiver.url, events=["order.*"], conn=conn)
        await conn.rollback()
    assert await hf.ops.webhooks() == []


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_the_wrong_colour_names_the_right_call(hf: Holdfast) -> None:
    conn = sqlite3.connect(":memory:")
    with pytest.raises(TypeError, match=r"hf\.webhooks\.sync\.add"):
        await hf.webhooks.add(URL, events=["*"], conn=conn)
    conn.close()


async def test_what_is_not_there_cannot_be_changed(hf: Holdfast) -> None:
    with pytest.raises(NotFound, match="webhooks list"):
        await hf.ops.disable_webhook("nope", actor="ada", reason="x")
    with pytest.raises(NotFound):
        await hf.ops.enable_webhook("nope", actor="ada")
    with pytest.raises(NotFound):
        await hf.ops.rotate_webhook_secret("nope", actor="ada")
    with pytest.raises(NotFound):
        await hf.ops.test_webhook("nope", actor="ada")


async def test_enabling_an_endpoint_does_not_bring_what_was_published_while_disabled(
    hf: Holdfast, receiver: Receiver
) -> None:
    added = await hf.webhooks.add(receiver.url, events=["order.*", "*"], conn=None)
    await hf.ops.disable_webhook(added.id, actor="ada", reason="holiday")
    await hf.publish("order.placed", {"id": 1}, conn=None)
    await hf.ops.enable_webhook(added.id, actor="ada")
    await hf.publish("order.placed", {"id": 2}, conn=None)
    await drain(hf)
    assert (await only(hf)).status is Status.DELIVERED
    assert [request.json["data"]["id"] for request in receiver.requests] == [2]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_gate_lets_so_many_pass_at_once() -> None:
    gate = ConcurrencyLimiter(2, Clock())
    assert [gate.enter() == 0 for _ in range(3)] == [True, True, False]
    gate.leave(0.1)
    assert gate.enter() == 0


def test_a_gate_gives_those_that_wait_different_times() -> None:
    gate = ConcurrencyLimiter(1, Clock())
    assert gate.enter() == 0
    waits = [gate.enter() for _ in range(5)]
    assert all(wait > 0 for wait in waits)
    assert waits == sorted(set(waits))


def test_a_wait_at_a_gate_is_bounded_and_a_hold_too() -> None:
    clock = Clock()
    busy = ConcurrencyLimiter(1, clock)
    assert busy.enter() == 0
    assert max(busy.enter() for _ in range(1000)) <= 30
    held = ConcurrencyLimiter(1, clock)
    held.hold(1e9)
    assert 0 < held.enter() <= 300
    clock.now += 301
    assert held.enter() == 0


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_what_was_read_of_all_circuits_lets_closed_ones_pass_for_a_moment(hf: Holdfast) -> None:
    await hf.publish("order.placed", {}, conn=None)
    circuits = EndpointCircuits(hf.store)
    assert circuits.peek("webhook:a") is None, "nothing was read yet"
    now = time.monotonic()
    at = datetime.now(UTC)
    circuits.take([StoredBreaker("webhook:open", Circuit(open_until=at), at)], now)
    assert circuits.peek("webhook:a") == Circuit()
    assert circuits.peek("webhook:open") is None, "the breaker knows more of an open one"
    breaker = CircuitBreaker("webhook:a", circuits, threshold=1)
    await breaker.settle(await breaker.admit(), Result.FAILED, "down")
    assert circuits.peek("webhook:a") is None
    circuits.take([], now)
    assert circuits.peek("webhook:a") is None, "it was read before it changed"
    circuits.take([], now - 10)
    assert circuits.peek("webhook:b") is None, "it was read too long ago"


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_an_endpoint_is_added_in_the_transaction_of_a_session(hf: Holdfast, receiver: Receiver) -> None:
    engine = create_async_engine(hf.dsn.replace("postgresql://", "postgresql+psycopg://"))
    added = []
    for commit in (False, True):
        async with AsyncSession(engine) as session:
            added.append(await hf.webhooks.add(receiver.url, events=["order.*"], tenant="acme", conn=session))
            await hf.publish("order.placed", {"id": 1}, conn=session, headers={"tenant": "acme"})
            if commit:
                await session.commit()
    await engine.dispose()
    assert [one.id for one in await hf.ops.webhooks()] == [added[1].id]
    await drain(hf)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(("rate", "shown"), [(20, "20/1s"), (0.5, "1/2s")])
async def test_the_rate_of_an_endpoint_of_an_older_release_becomes_flow_control(
    hf: Holdfast, rate: float, shown: str
) -> None:
    await hf.webhooks.add(URL, events=["order.*"], conn=None)
    sql(hf.store, f"update {{hf}}endpoint set rate = {rate}")
    package = f"holdfast.stores.{hf.store.dialect.name}.migrations"
    (migration,) = [one for one in migrations(package) if one.name == "endpoint_flow"]
    sql(hf.store, migration.text)
    (found,) = await hf.ops.webhooks()
    assert found.rate == shown
    (consumer,) = await hf.store.run(consumers())
    assert stored_flow(str(consumer.flow)).limit == 10, "its concurrency"
