"""The harness itself: one tiny real run of ours and of the bound, and what becomes of a subject that fails."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bench.rounds
from bench import environment
from bench.check import Wrong
from bench.child import Failed, ask
from bench.environment import Missing, pins
from bench.measure import Measurement, Results
from bench.peers.protocol import Unable, payloads
from bench.plan import SHORT, Run
from bench.rounds import interleaved
from bench.servers import Stores
from bench.subject import BOUND, OURS, SUBJECTS, Kind, chosen, named
from bench.suites import held, start
from bench.suites.drain import publish_and_drain

pytestmark = pytest.mark.long

PEERS = Path(bench.rounds.__file__).parent / "peers"


@pytest.fixture
def run() -> Iterator[Run]:
    with Stores() as stores:
        yield Run(stores, replace(SHORT, rounds=2), Results())


@pytest.mark.parametrize("size", [100, 1000])
def test_payloads_have_their_size_and_their_own_ids(size: int) -> None:
    rows = payloads(1200, size, first=7)
    assert {len(json.dumps(row)) for row in rows} == {size}
    assert [row["id"] for row in rows] == list(range(7, 1207))


def test_every_subject_has_a_program_and_a_pinned_environment() -> None:
    for subject in SUBJECTS:
        assert (PEERS.parent / f"{subject.module.replace('.', '/').removeprefix('bench/')}.py").exists(), subject.name
        assert subject.environment is None or subject.environment in pins(), subject.name
    assert all("==" in package for one in pins().values() for package in one.packages)


def test_a_peer_that_cannot_be_installed_is_tried_once_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def made(wanted: environment.Pins) -> Path:
        tried.append(wanted.name)
        raise Missing("no wheel for this machine")

    monkeypatch.setattr(environment, "_made", made)
    environment._found.cache_clear()
    try:
        for _ in range(2):
            with pytest.raises(Missing, match="no wheel"):
                environment.interpreter("saq")
    finally:
        environment._found.cache_clear()
    assert tried == ["saq"]


def test_ours_and_the_bound_are_always_chosen() -> None:
    assert {one.peer for one in chosen(Kind.POSTGRES, ("saq",))} == {OURS, BOUND, "saq"}
    assert [one.name for one in chosen(Kind.POSTGRES, ("pgqueuer/best",)) if one.peer == "pgqueuer"] == [
        "pgqueuer/best"
    ]


@pytest.mark.parametrize("kind", [Kind.POSTGRES, Kind.SQLITE])
@pytest.mark.parametrize("peer", [OURS, BOUND])
def test_a_tiny_run_publishes_and_drains(run: Run, kind: Kind, peer: str) -> None:
    published, drained = publish_and_drain(run, named(peer, kind), 60)
    assert published > 0
    assert drained > 0


@pytest.mark.parametrize("kind", [Kind.POSTGRES, Kind.SQLITE])
@pytest.mark.parametrize("peer", [OURS, BOUND])
def test_the_versions_of_a_subject_are_recorded(run: Run, kind: Kind, peer: str) -> None:
    assert bench.rounds.known(run, "drain", named(peer, kind)), run.results.problems
    assert run.results.facts["subjects"][f"{peer} on {kind.value}"]["packages"]


def test_a_subject_that_breaks_says_how(run: Run) -> None:
    with pytest.raises(Failed, match=r"holdfast setup ended without an answer: .+"):
        ask(named(OURS), "setup", "postgresql://postgres@127.0.0.1:1/x")


def test_what_a_subject_cannot_do_is_distinguished_from_a_failure(run: Run) -> None:
    with run.stores.fresh(Kind.SQLITE) as where, pytest.raises(Unable, match="caller's transaction"):
        ask(named(BOUND, Kind.SQLITE), "transact", where, count=1)


def test_rounds_are_interleaved_and_a_failing_subject_is_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.rounds, "known", lambda *_: True)
    subjects = chosen(Kind.POSTGRES)[:4]
    failing = dict(zip(subjects[1:], [Unable("cannot"), Wrong("lost one"), Missing("no such wheel")], strict=True))
    seen = []

    def measure(subject: object, turn: int) -> Iterator[Measurement]:
        seen.append((turn, subject))
        if error := failing.get(subject):  # type: ignore[call-overload]
            raise error
        yield Measurement("suite", "x", "m", 1.0, "/s", turn)

    interleaved(run, "suite", subjects, measure)
    assert seen == [*((0, one) for one in subjects), (1, subjects[0])]
    assert [(one.kind, one.reason) for one in run.results.problems] == [
        ("unable", "cannot"),
        ("wrong", "lost one"),
        ("missing", "no such wheel"),
    ]
    assert len(run.results.measurements) == 2


def test_when_time_is_up_the_first_round_is_still_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.rounds, "known", lambda *_: True)
    run.sizes = replace(run.sizes, minutes=0)
    interleaved(run, "suite", [named(OURS)], lambda _, turn: [Measurement("suite", OURS, "m", 1.0, "/s", turn)])
    assert len(run.results.measurements) == 1
    assert [one.kind for one in run.results.problems] == ["cut short"]


def test_drain_with_start_up_and_a_held_transaction_are_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.sizes, run.peers = replace(run.sizes, rounds=1, held=1.5), (OURS,)
    monkeypatch.setattr(start, "COUNT", 500)
    monkeypatch.setattr(held, "_TRIAL", 500)
    monkeypatch.setattr(held, "_SHARE", 0.2)
    start.start_suite(run)
    held.held_suite(run)
    assert not run.results.problems
    found = {(m.suite, m.metric, m.point): m.value for m in run.results.measurements}
    assert found["start", "process start to first handler", None] > 0
    assert found["start", "drain with start-up", None] > 0
    assert found["held", "dead tuples per job", None] > 0
    assert found["held", "recovered after", None] >= 0
    for phase in ("before", "held", "after"):
        assert 0 < found["held", "due to handled p50", phase] <= found["held", "due to handled p99", phase]
