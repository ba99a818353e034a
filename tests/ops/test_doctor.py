"""The doctor: a healthy store is well, and every illness is found, with a remedy."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from holdfast.core.change import Deliver, Retry
from holdfast.core.retry import RetryPolicy
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.ops.doctor.checks import Facts, Finding, Level, run_checks, schema_finding
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import block_consumer, pause_consumer, pause_queue
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.messages.registry import Consumer
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.health import (
    LaneCount,
    OldTransaction,
    Overdue,
    SubscriptionLag,
    TableHealth,
    old_transactions,
)
from holdfast.stores.queries.query import Count
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.support.builders import (
    age,
    claim_all,
    expire,
    failure,
    finish,
    fresh_id,
    job,
    message,
    put,
    register_consumers,
    sql,
    start,
)
from tests.support.failures import dead_letters, fail_pending

NOW = datetime(2026, 11, 15, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


def bad(found: list[Finding]) -> dict[str, Level]:
    """What is not well. The test servers run without fsync, which is theirs to have."""
    return {
        f.check: f.level
        for f in found
        if f.level is not Level.OK
        and "fsync" not in f.message
        and "full_page" not in f.message
        and "synchronous_commit" not in f.message
    }


async def test_a_healthy_store_is_well(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.*"]})
    await start(store, "w", ["mail"])
    await put(store, message())
    for claimed in await claim_all(store):
        await finish(store, claimed, Deliver())
    found = await ops.doctor()
    assert bad(found) == {}
    assert {"schema", "durability", "clock", "workers", "unserved", "leases", "subscriptions"} <= {
        f.check for f in found
    }


async def test_work_that_no_worker_can_run_is_found(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": [], "export": [], "report": []})
    await put(store, job("mail"))
    assert bad(await ops.doctor()) == {"workers": Level.FAIL}
    await start(store, "w", ["mail", "report"], generation=1)
    assert bad(await ops.doctor()) == {}
    await put(store, job("export"), job("report", queue="slow"), job("mail", generation=2))
    found = await ops.doctor()
    assert bad(found) == {"unserved": Level.FAIL, "generations": Level.FAIL}
    wrong = [f for f in found if f.level is Level.FAIL]
    assert [f.message for f in wrong if f.check != "durability"] == [
        "1 delivery waits for export, which no live worker has",
        "1 delivery waits for report in queue slow, which no live worker with report serves",
        "1 delivery waits for mail at generation 2, later than every live worker's",
    ]


async def test_work_of_a_generation_that_serves_only_another_queue_is_found(store: Store, ops: Operations) -> None:
    await start(store, "old", ["mail"], generation=4, queues=["default"])
    await start(store, "new", ["mail"], generation=9, queues=["bulk"])
    await put(store, job("mail", generation=9))
    (finding,) = [one for one in await ops.doctor() if one.check == "generations"]
    assert finding.level is Level.FAIL
    assert "1 delivery waits for mail at generation 9" in finding.message
    (waiting,) = await ops.deliveries()
    assert (await ops.delivery(waiting.delivery.id)).obstacles == ("no live worker has generation 9 or a later one",)


async def test_work_that_was_never_taken_over_is_found(store: Store, ops: Operations) -> None:
    await start(store, "w1", ["mail"])
    await put(store, job("mail"))
    await claim_all(store)
    expire(store)
    assert "leases" not in bad(await ops.doctor()), "a worker has a grace to take it over"
    expire(store)
    expire(store)
    assert bad(await ops.doctor())["leases"] is Level.WARN
    await start(store, "w2", ["mail"])
    assert bad(await ops.doctor())["leases"] is Level.FAIL


async def test_pauses_blocks_suspects_and_full_histories_are_found(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 1)
    for _ in range(20):
        await ops.replay(ids, actor="ada")
        await fail_pending(store)
    await start(store, "w", ["mail"])
    await put(store, job("mail"))
    sql(store, "update {hf}delivery set suspect = (1 = 1) where status = 'pending'")
    await store.run(pause_queue("default", "ada", None))
    await store.run(pause_consumer("mail", "ada", None))
    await store.run(block_consumer("mail", "smtp", HOUR, "w"))
    found = await ops.doctor()
    other = dict.fromkeys(("dead letters", "paused", "blocked", "suspects", "history"), Level.WARN)
    assert bad(found) == {"failing": Level.FAIL, **other}
    assert any(str(ids[0]) in f.message for f in found)


async def test_a_subscription_far_behind_is_found(store: Store, ops: Operations) -> None:
    await put(store, *(message() for _ in range(1001)))
    await register_consumers(store, {"mail": ["order.*"]})
    assert bad(await ops.doctor()) == {"subscriptions": Level.WARN}
    await ops.catch_up(actor="ada")
    assert bad(await ops.doctor()) == {"workers": Level.FAIL}


async def test_a_clock_that_is_wrong_is_found(ops: Operations) -> None:
    found = await ops.doctor(lambda: datetime.now(UTC) - HOUR)
    (clock,) = [f for f in found if f.check == "clock"]
    assert (clock.level, "1h ahead" in clock.message) == (Level.WARN, True)


def test_a_store_without_tables_is_found_and_nothing_else(tmp_path: Path, postgres18: PostgresServer) -> None:
    dsn = postgres18.create_database("doctor_empty")
    for store in (SqliteStore(tmp_path / "empty.db"), PostgresStore(dsn)):
        (finding,) = Operations(store).sync.doctor()
        assert (finding.check, finding.level, "migrate" in finding.remedy) == ("schema", Level.FAIL, True)
        store.close_sync()
    postgres18.drop_database("doctor_empty")


def test_a_server_that_does_not_sync_is_found(
    postgres18: PostgresServer, database: Callable[[PostgresServer], str]
) -> None:
    """The test servers trade durability for speed: exactly what a doctor must not let pass."""
    store = PostgresStore(database(postgres18))
    found = Operations(store).sync.doctor()
    store.close_sync()
    wrong = [f for f in found if f.check == "durability"]
    assert any("fsync is off" in f.message and f.level is Level.FAIL for f in wrong)


def test_an_open_transaction_is_seen(postgres18: PostgresServer, database: Callable[[PostgresServer], str]) -> None:
    dsn = database(postgres18)
    store = PostgresStore(dsn)
    with psycopg.connect(dsn, application_name="forgetful") as session:
        session.execute("select 1")
        found = store.run_sync(old_transactions(timedelta(0)))
        assert [(one.kind, one.state) for one in found if one.application == "forgetful"] == [
            ("session", "idle in transaction")
        ]
        assert store.run_sync(old_transactions(HOUR)) == []
    store.close_sync()


def test_a_pooler_is_noticed(postgres18: PostgresServer, database: Callable[[PostgresServer], str]) -> None:
    database(postgres18)
    with PgBouncer(postgres18) as pooler:
        store = PostgresStore(pooler.dsn("holdfast_test"))
        found = Operations(store).sync.doctor()
        store.close_sync()
    assert any(f.check == "pooler" for f in found)


def facts(**changes: object) -> Facts:
    """A healthy store."""
    worker = WorkerRecord("w", 1, (), ("mail",), NOW, NOW + HOUR, True, 0)
    healthy = Facts(
        schema=SchemaStatus("holdfast", 3, 3),
        skew=timedelta(0),
        now=NOW,
        settings={"fsync": "on", "synchronous_commit": "on", "autovacuum": "on", "server_version": "18"},
        workers=(worker,),
        consumers=(Consumer("mail", "default", 1, RetryPolicy.exponential(), 0, NOW, None, None, None),),
        paused_queues={},
        counts=(Count("default", "mail", "pending", BoundedCount(3), NOW, NOW),),
        lanes=(LaneCount("default", "mail", 1, 3, NOW),),
        overdue=Overdue(0, None),
        at_bound=(),
        lags=(SubscriptionLag("order.*", "mail", 3),),
        old=(),
        tables=(TableHealth("delivery", 10, 1000, NOW),),
        pooled=False,
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def settings(name: str, value: str) -> Facts:
    return facts(settings={**facts().settings, name: value})


@pytest.mark.parametrize(
    ("ill", "check", "level"),
    [
        (settings("fsync", "off"), "durability", Level.FAIL),
        (settings("full_page_writes", "off"), "durability", Level.FAIL),
        (settings("synchronous_commit", "off"), "durability", Level.FAIL),
        (settings("autovacuum", "off"), "durability", Level.FAIL),
        (settings("track_counts", "off"), "durability", Level.WARN),
        (settings("default_transaction_isolation", "serializable"), "durability", Level.WARN),
        (settings("default_transaction_read_only", "on"), "durability", Level.FAIL),
        (settings("journal_mode", "delete"), "durability", Level.WARN),
        (settings("synchronous", "1"), "durability", Level.FAIL),
        (facts(skew=timedelta(seconds=-6)), "clock", Level.WARN),
        (facts(workers=()), "workers", Level.FAIL),
        (facts(workers=(), lanes=(LaneCount("default", "mail", 1, 3, NOW + HOUR),)), "workers", Level.WARN),
        (facts(workers=(), lanes=(LaneCount("default", "mail", 1, 3, NOW + HOUR / 60),)), "workers", Level.FAIL),
        (facts(lanes=(LaneCount("default", "mail", 2, 3, NOW),)), "generations", Level.FAIL),
        (facts(overdue=Overdue(2, HOUR)), "leases", Level.FAIL),
        (facts(counts=(Count("default", "mail", "suspect", BoundedCount(1), NOW, NOW),)), "suspects", Level.WARN),
        (facts(paused_queues={"default": NOW}), "paused", Level.WARN),
        (facts(at_bound=((fresh_id(), "mail"),)), "history", Level.WARN),
        (facts(lags=(SubscriptionLag("order.*", "mail", 1000),)), "subscriptions", Level.WARN),
        (
            facts(old=(OldTransaction("session", "77", "psql", "idle in transaction", HOUR),)),
            "transactions",
            Level.WARN,
        ),
        (facts(old=(OldTransaction("prepared", "gid", "app", "prepared", HOUR),)), "transactions", Level.WARN),
        (facts(old=(OldTransaction("slot", "standby", "physical", "inactive", None),)), "transactions", Level.WARN),
        (facts(tables=(TableHealth("delivery", 10, 200_000, None),)), "bloat", Level.WARN),
    ],
)
def test_every_illness_has_a_name_and_a_remedy(ill: Facts, check: str, level: Level) -> None:
    found = run_checks(ill)
    wrong = [finding for finding in found if finding.level is not Level.OK]
    assert [(finding.check, finding.level) for finding in wrong] == [(check, level)]
    assert all(finding.remedy for finding in wrong)
    assert found[0] in wrong, "the worst comes first"


def test_a_healthy_judgement_is_well_and_a_newer_schema_asks_for_an_upgrade() -> None:
    assert {finding.level for finding in run_checks(facts())} == {Level.OK}
    assert {finding.level for finding in run_checks(facts(pooled=True, workers=(), lanes=()))} == {Level.OK}
    assert "upgrade" in schema_finding(SchemaStatus("holdfast", 9, 3)).remedy
    assert "migrate" in schema_finding(SchemaStatus("holdfast", 1, 3)).remedy


async def test_dead_letters_failing_consumers_and_old_work_come_first(store: Store, ops: Operations) -> None:
    """Even before a failure of the settings, such as the missing fsync of the test servers."""
    await dead_letters(store, 3)
    await dead_letters(store, 2, consumer="export", text="disk full")
    age(store, HOUR, "delivery")
    await dead_letters(store, 1, consumer="billing", text="declined")
    await put(store, job("slow"), job("paused"))
    await register_consumers(store, {"paused": []})
    await ops.pause_consumer("paused", actor="ada")
    age(store, HOUR, "delivery")
    await dead_letters(store, 1, consumer="billing", text="declined")
    await start(store, "w", ["mail", "export", "billing", "slow", "paused"])
    found = await ops.doctor()
    first = [(one.check, one.level) for one in found[:3]]
    assert first == [("failing", Level.FAIL), ("dead letters", Level.WARN), ("old work", Level.WARN)]
    failing, dead, old = found[:3]
    assert re.match(r"billing is failing: last dead letter \d+s ago; RuntimeError: declined at /", failing.message)
    assert dead.message.startswith("7 dead letters in 3 groups; 3 of mail for 2h: RuntimeError: boom at ")
    assert re.search(r"`holdfast replay --group \w+ --consumer mail --dry-run`$", dead.remedy)
    assert old.message == "1 delivery for slow in queue default: the oldest has been due for 1h"
    assert [one.check for one in found if one.level is not Level.OK].count("old work") == 1, (
        "a pause is its own finding"
    )


async def test_a_long_error_is_cut_between_words(store: Store, ops: Operations) -> None:
    await dead_letters(store, 1, text="explanation " * 30)
    failing = (await ops.doctor())[0]
    assert re.search(r"explanation … at /", failing.message)


async def test_a_consumer_whose_failures_are_retried_is_failing(store: Store, ops: Operations) -> None:
    await put(store, job("mail"))
    (claimed,) = await claim_all(store)
    await finish(store, claimed, Retry(HOUR), error=failure())
    found = (await ops.doctor())[0]
    assert (found.check, found.level) == ("failing", Level.WARN)
    assert found.message == "mail is failing: 1 delivery failed with RuntimeError, to be retried"
    assert found.remedy == f"run `holdfast deliveries show {claimed.id}`"
