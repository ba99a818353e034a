import pytest

from bench.acceptance import Verdict, verdicts
from tests.bench.build import results


def verdict(bar: str, *figures: tuple[str, str, str, float] | tuple[str, str, str, float, str | float]) -> Verdict:
    (found,) = [one for one in verdicts(results(*figures)) if one.bar.startswith(bar)]
    return found


def test_without_figures_no_bar_is_held_or_missed() -> None:
    assert {one.held for one in verdicts(results())} == {None}


@pytest.mark.parametrize(("ours", "held"), [(200.0, True), (199.0, False)])
def test_a_drain_is_held_against_the_best_of_a_peers_variants(ours: float, held: bool) -> None:
    found = verdict(
        "PostgreSQL drain vs PgQueuer",
        ("drain-postgres", "holdfast", "drain", ours),
        ("drain-postgres", "holdfast/wide", "drain", 1000.0),
        ("drain-postgres", "pgqueuer", "drain", 50.0),
        ("drain-postgres", "pgqueuer/best", "drain", 100.0),
    )
    assert found.held is held
    assert "holdfast vs pgqueuer/best" in found.found


@pytest.mark.parametrize(("ours", "held"), [(8.0, True), (8.1, False)])
def test_idle_latency_is_held_against_the_bare_round_trip(ours: float, held: bool) -> None:
    figures = [("latency", "holdfast", "commit to start p50", ours), ("latency", "bare", "commit to start p50", 4.0)]
    assert verdict("idle latency", *figures).held is held


def test_in_a_callers_transaction_the_fastest_driver_counts_on_both_sides() -> None:
    figures = [
        ("transact", "holdfast", "transactions", 90.0),
        ("transact", "holdfast/asyncpg", "transactions", 110.0),
        ("transact", "pgqueuer/best", "transactions", 100.0),
        ("transact", "bare", "transactions", 500.0),
    ]
    assert verdict("publish in a caller's", *figures).held is True


def test_a_steady_rate_is_compared_with_peers_at_that_rate_alone() -> None:
    figures = [
        ("steady", "holdfast", "publish to done p99", 20.0, "half of ours"),
        ("steady", "pgqueuer/best", "publish to done p99", 10.0, "half of the fastest peer"),
    ]
    assert verdict("steady load p99 vs the best peer, at half of ours", *figures).held is None


def test_a_steady_rate_that_no_peer_holds_is_held() -> None:
    found = results(("steady", "holdfast", "publish to done p99", 20.0, "half of ours"))
    found.blame("steady", "pgqueuer/best", "too slow", "drains 9/s at most, less than the load of 10/s (half of ours)")
    ours, theirs = (one for one in verdicts(found) if one.bar.startswith("steady load"))
    assert (ours.held, ours.found) == (True, "no peer holds the rate")
    assert theirs.held is None
    found.blame("steady", "awa/best", "failed", "it ended early")
    assert {one.held for one in verdicts(found)} == {None}


@pytest.mark.parametrize(("big", "held"), [(15.0, True), (16.0, False)])
def test_a_claim_in_a_big_store_is_held_against_an_empty_one(big: float, held: bool) -> None:
    figures = [("store", "holdfast", "claim", big, "big"), ("store", "holdfast", "claim", 10.0, "empty")]
    assert verdict("claim in a big store", *figures).held is held


def test_with_retry_must_be_cheaper_than_the_cheaper_library() -> None:
    figures = [
        ("calls", "holdfast", "async", 6.0),
        ("calls", "stamina", "async", 5.0),
        ("calls", "tenacity", "async", 9.0),
        ("calls", "no wrapper", "async", 0.1),
    ]
    assert verdict("`with_retry` vs the cheaper of stamina and tenacity, async", *figures).held is False


@pytest.mark.parametrize(("steps", "held"), [(1.5, True), (1.7, False)])
def test_a_step_may_take_a_little_longer_than_a_job(steps: float, held: bool) -> None:
    figures = [
        ("workflow-sqlite", "holdfast", "step to step p50", steps, "three-step runs"),
        ("workflow-sqlite", "holdfast", "step to step p50", 1.0, "three jobs"),
    ]
    assert verdict("SQLite, three-step runs vs three jobs, outcome", *figures).held is held


@pytest.mark.parametrize(("rate", "held"), [(12_000.0, True), (11_999.0, False)])
def test_a_fan_in_is_held_against_a_rate(rate: float, held: bool) -> None:
    found = verdict("PostgreSQL, fan-in", ("workflow-postgres", "holdfast", "fan-in of 10,000", rate))
    assert found.held is held


def test_workflows_are_compared_with_each_peer() -> None:
    figures = [
        ("workflow-peers", "holdfast", "workflows", 500.0),
        ("workflow-peers", "dbos/best", "workflows", 100.0),
        ("workflow-peers", "absurd/best", "workflows", 101.0),
    ]
    assert verdict("three-step workflows vs dbos", *figures).held is True
    assert verdict("three-step workflows vs absurd", *figures).held is False
