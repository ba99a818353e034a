"""The doctor on brokers: whether they answer, what in their settings loses records, how far they are read."""

import asyncio
from datetime import UTC, datetime, timedelta

from holdfast.core.errors import BrokerUnavailable, ConfigurationError
from holdfast.ops.doctor.broker_checks import check_brokers, check_intakes
from holdfast.ops.doctor.checks import Level
from holdfast.ops.service import Operations
from holdfast.stores.messages.intake import IntakeReport, intakes, report_intake
from holdfast.stores.protocol import Store
from tests.support.builders import register_consumers, sql

NOW = datetime(2026, 11, 15, 9, tzinfo=UTC)


class Broker:
    """A broker that returns the given warnings, or raises the given error; None never answers."""

    def __init__(self, name: str, answer: "list[str] | Exception | None") -> None:
        self.name, self.answer, self.asked = name, answer, 0

    async def durability_warnings(self) -> list[str]:
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


def report(**changed: object) -> IntakeReport:
    values: dict[str, object] = {
        "consumer": "till",
        "source": "nats:PAY/till",
        "direct": False,
        "waiting": 5,
        "unacknowledged": 1,
        "problem": None,
        "reported_at": NOW - timedelta(seconds=10),
        **changed,
    }
    return IntakeReport(**values)  # type: ignore[arg-type]


def test_each_place_is_examined_once_and_none_hides_the_others() -> None:
    twice = [Broker("nats:PAY/till", []), Broker("nats:PAY/till", [])]
    found = check_brokers(
        [
            *twice,
            Broker("redis:a", ["redis:a: appendonly is off: a crash loses records; set appendonly yes"]),
            Broker("kafka:b", BrokerUnavailable("kafka:b", "connection refused")),
            Broker("kafka:c", None),
            Broker("nats:d", ConfigurationError("nats:d has no address; set HOLDFAST_NATS")),
            Broker("nats:e", RuntimeError("boom")),
        ],
        seconds=0.2,
    )
    assert sum(place.asked for place in twice) == 1
    assert [(finding.level, finding.message.split(" ")[0].rstrip(":")) for finding in found] == [
        (Level.OK, "nats:PAY/till"),
        (Level.WARN, "redis:a"),
        (Level.FAIL, "kafka:b"),
        (Level.FAIL, "kafka:c"),
        (Level.FAIL, "nats:d"),
        (Level.FAIL, "nats:e"),
    ]
    assert (found[1].message, found[1].remedy) == (
        "redis:a: appendonly is off: a crash loses records",
        "set appendonly yes",
    )
    assert "connection refused" in found[2].message
    assert "did not respond" in found[3].message
    assert "HOLDFAST_NATS" in found[4].message
    assert check_brokers([]) == []


def test_a_source_that_is_not_read_or_read_too_slowly_is_found() -> None:
    def judged(one: IntakeReport) -> tuple[Level, str]:
        (finding,) = check_intakes([one], NOW)
        return finding.level, finding.message

    assert judged(report())[0] is Level.OK
    assert judged(report(waiting=None, unacknowledged=None))[0] is Level.OK
    assert judged(report(problem="refused")) == (Level.FAIL, "nats:PAY/till is not read for till: refused")
    assert judged(report(waiting=4321)) == (
        Level.WARN,
        "4,321 records of nats:PAY/till wait for till, 1 are in progress",
    )
    level, message = judged(report(reported_at=NOW - timedelta(hours=2)))
    assert (level, "for 2h" in message) == (Level.WARN, True)
    assert list(check_intakes([], NOW)) == []


async def test_lag_at_brokers_is_in_the_doctors_report_until_the_consumer_is_retired(
    store: Store, ops: Operations
) -> None:
    await register_consumers(store, {"till": []})
    reported = report_intake("till", "nats:PAY/till", direct=False, waiting=2000, unacknowledged=0, problem=None)
    await store.run(reported)
    place = Broker("nats:PAY", ["stream PAY is kept in memory; set storage=file"])
    found = {finding.check: finding for finding in await ops.doctor(places=[place])}
    assert found["sources"].message == "2,000 records of nats:PAY/till wait for till"
    assert (found["brokers"].level, found["brokers"].remedy) == (Level.WARN, "set storage=file")
    await ops.retire_consumer("till", actor="ada")
    assert await store.run(intakes()) == []
    ((action, detail),) = sql(store, "select action, detail from {hf}audit where target = 'till'")
    assert (action, "nats:PAY/till" in str(detail)) == ("retire", True)
    assert "sources" not in {finding.check for finding in await ops.doctor()}
