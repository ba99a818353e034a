"""Counts that the budget ended, as operators see them: marked in every output, and exact where requested."""

import pytest

from holdfast.core.values.bounded_count import BoundedCount
from holdfast.interfaces.presentation.deliveries import next_commands
from holdfast.interfaces.presentation.views import view
from holdfast.ops.doctor import doctor, work_checks
from holdfast.ops.queries.stats import Load, Stats, read_conditions
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from holdfast.stores.queries import delivery_counts
from tests.support.builders import job, put, sql
from tests.support.failures import dead_letters


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of three."""
    monkeypatch.setattr(delivery_counts, "_FEW", 3)
    monkeypatch.setattr(delivery_counts, "BUDGET", 3)


@pytest.mark.usefixtures("low")
async def test_a_figure_at_the_bound_is_named_in_every_shape(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 5)
    await put(store, job("mail"))
    stats = await ops.stats()
    (queue,), (consumer,), (group,) = await ops.queues(), await ops.consumers(), await ops.failure_groups()
    for one in (stats, stats.loads[0], queue, consumer):
        assert (f"{one.failed:,}", f"{one.pending:,}") == ("3+", "1")
    for shown, named in ((stats, "failed"), (stats.loads[0], "failed"), (queue, "failed"), (group, "count")):
        read = view(shown)
        assert isinstance(read, dict)
        assert (read[named], read["at_least"]) == (3, [named])
    detail = await ops.delivery(ids[0])
    viewed = view(detail)
    assert isinstance(viewed, dict)
    assert (viewed["alike"], viewed["at_least"]) == (3, ["alike"])
    mark = detail.listed.delivery.fingerprint
    assert f"holdfast replay --group {mark} --consumer mail" in dict(next_commands(detail)).values(), "all, not three"
    exact = await ops.stats(exact=True)
    assert (f"{exact.failed}", view(exact)["at_least"]) == ("5", [])  # type: ignore[index]
    (deliveries,) = [one for one in await ops.metrics() if one.name == "holdfast_deliveries_all"]
    assert {sample.labels["state"]: sample.value for sample in deliveries.samples}["failed"] == 5


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("failed>2", True),
        ("failed>3", False),
        ("failed>=3", True),
        ("failed>=4", False),
        ("failed<3", True),
        ("failed<4", False),
        ("failed<=2", True),
        ("failed<=3", False),
        ("failed=2", True),
        ("failed=3", False),
        ("failed=4", False),
        ("pending>100", True),
        ("oldest>1h", True),
    ],
)
async def test_a_condition_knows_whether_counting_on_could_change_it(ops: Operations, text: str, settled: bool) -> None:
    load = Load(queue="default", consumer="mail", failed=BoundedCount(3, or_more=True), pending=BoundedCount(7))
    now = await ops.now()
    stats = Stats(now=now, loads=(load,), workers=0, paused_queues=(), paused_consumers=(), blocked_consumers=())
    (condition,) = read_conditions(text)
    assert condition.settled(stats) is settled


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_the_doctor_says_that_there_may_be_more_groups_than_it_read(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "GROUPS", 2)
    monkeypatch.setattr(work_checks, "GROUPS", 2)
    await dead_letters(store, 5)
    sql(store, "update {hf}delivery set fingerprint = 'f' || substr(cast(id as text), 20)")
    (finding,) = [one for one in await ops.doctor() if one.check == "dead letters"]
    assert finding.message.startswith("5 dead letters in 2 groups or more")
