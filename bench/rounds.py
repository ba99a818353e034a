"""Rounds: every subject once, then every subject again, so that a slow minute of the machine hits all alike."""

from collections.abc import Callable, Iterable

from bench.check import Wrong
from bench.child import Failed, ask
from bench.environment import Missing
from bench.measure import Measurement
from bench.peers.protocol import Unable
from bench.plan import Run
from bench.subject import Subject

Measure = Callable[[Subject, int], Iterable[Measurement]]


def interleaved(
    run: Run, suite: str, subjects: Iterable[Subject], measure: Measure, *, rounds: int | None = None
) -> None:
    """Measures every subject in every round, `rounds` at most. One that fails is named and left out of the rest."""
    subjects = [one for one in subjects if known(run, suite, one)]
    out: set[Subject] = set()
    for round in range(min(run.sizes.rounds, rounds or run.sizes.rounds)):
        for subject in subjects:
            if subject in out:
                continue
            if round and run.out_of_time:
                run.results.blame(suite, subject.name, "cut short", f"out of time after {round} rounds")
                out.add(subject)
                continue
            try:
                found = list(measure(subject, round))
            except (Unable, Wrong, Failed, Missing) as error:
                run.results.blame(suite, subject.name, type(error).__name__.lower(), str(error))
                run.say(
                    f"{suite} {subject.name}: {type(error).__name__}: {error}\n{getattr(error, 'last_words', '')}".rstrip()
                )
                out.add(subject)
                continue
            run.results.add(*found)
            figures = ", ".join(f"{m.metric} {m.value:,.4g} {m.unit}" for m in found)
            run.say(f"{suite} round {round + 1} {subject.name}: {figures}")


def known(run: Run, suite: str, subject: Subject) -> bool:
    """Whether the subject can be run at all; its versions are noted, or why it is missing."""
    if subject in run.left_out:
        return False
    versions = run.results.facts.setdefault("subjects", {})
    named = f"{subject.name} on {subject.kind.value}"
    if named in versions:
        return True
    try:
        with run.stores.fresh(subject.kind) as where:
            about = ask(subject, "about", where, seconds=60)
    except (Missing, Failed) as error:
        run.results.blame(suite, subject.name, "missing", str(error))
        run.say(f"{subject.name} is missing: {error}")
        run.left_out.add(subject)
        return False
    versions[named] = {
        "python": about["python"],
        "packages": about["packages"],
        "settings": dict(subject.settings),
        "store": subject.kind.value,
        "handler": "plain function" if subject.sync else "async",
    }
    return True
