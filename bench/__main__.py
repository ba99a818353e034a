"""`python -m bench`: measures, prints tables, and says which bars were held."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench.acceptance import verdicts
from bench.check import Wrong
from bench.child import Failed
from bench.environment import Missing
from bench.machine import load, machine
from bench.measure import Results
from bench.peers.protocol import Unable
from bench.plan import FULL, SHORT, Run
from bench.servers import Stores
from bench.subject import OURS, Kind
from bench.suites.batch import batch_suite
from bench.suites.brokers import brokers_suite
from bench.suites.calls import calls_suite
from bench.suites.drain import drain_suite, publish_suite
from bench.suites.flow import flow_suite
from bench.suites.growth import growth_suite
from bench.suites.held import held_suite
from bench.suites.latency import latency_suite
from bench.suites.memory import memory_suite
from bench.suites.publish_size import publish_size_suite
from bench.suites.revisions import ratios, revisions_suite
from bench.suites.snapshot import snapshot_suite
from bench.suites.start import start_suite
from bench.suites.steady import steady_suite
from bench.suites.store import store_suite
from bench.suites.transact import transact_suite
from bench.suites.workflow import workflow_suite
from bench.table import acceptance, figures, problems, table

SUITES: dict[str, Callable[[Run], None]] = {
    "drain": drain_suite,
    "start": start_suite,
    "transact": transact_suite,
    "publish-size": publish_size_suite,
    "latency": latency_suite,
    "steady": steady_suite,
    "sqlite": lambda run: drain_suite(run, Kind.SQLITE),
    "calls": calls_suite,
    "brokers": brokers_suite,
    "memory": memory_suite,
    "growth": growth_suite,
    "snapshot": snapshot_suite,
    "held": held_suite,
    "batch": batch_suite,
    "flow": flow_suite,
    "workflow": workflow_suite,
    "store": store_suite,
    "redis": lambda run: drain_suite(run, Kind.REDIS),
    "publish": publish_suite,
    "revisions": revisions_suite,
}
_USUAL = tuple(name for name in SUITES if name not in ("publish", "revisions"))  # the drain publishes too
_BUSY = 0.25
"""Load per core above which a machine is not quiet."""


@click.command()
@click.option("--suite", "suites", multiple=True, type=click.Choice(list(SUITES)), help="Only this; may be repeated.")
@click.option("--peers", default="", help="Only these, by name, separated by commas; ours and the bound always run.")
@click.option("--against", multiple=True, metavar="REV", help="Only compare with this revision; may be repeated.")
@click.option("--rounds", type=click.IntRange(1), help="How often each is measured; the median counts.")
@click.option("--full/--short", default=False, help="The sizes of the published figures, or a few minutes' worth.")
@click.option("--seconds", type=float, help="About how long one subject's round takes.")
@click.option("--jobs", type=click.IntRange(1), help="How many pass while a snapshot is held.")
@click.option("--delivered", type=click.IntRange(0), help="How many delivered ones the big store keeps.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Where to keep what was measured.")
def main(
    suites: tuple[str, ...],
    peers: str,
    against: tuple[str, ...],
    rounds: int | None,
    full: bool,
    seconds: float | None,
    jobs: int | None,
    delivered: int | None,
    out: Path | None,
) -> None:
    """Measures Holdfast, the bare loop and its peers side by side. Exits 1 when ours could not be measured."""
    sizes = FULL if full else SHORT
    given: dict[str, Any] = {"rounds": rounds, "seconds": seconds, "snapshot": jobs, "delivered": delivered}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    results = Results({"form": "full" if full else "short", "machine": machine(), "load_before": load()})
    with Stores() as stores:
        run = Run(stores, sizes, results, tuple(filter(None, peers.split(","))), against)
        if results.facts["load_before"] > _BUSY * results.facts["machine"]["cores"]:
            run.say("this machine is busy with something else: the figures will say little")
        for name in ("revisions",) if against else suites or _USUAL:
            _suite(run, name)
            results.facts |= {"minutes": run.minutes, "stores": stores.facts()}
            if out is not None:
                out.write_text(json.dumps(results.to_json(), indent=1) + "\n")
    print(_summary(results))
    if any(problem.subject.partition("/")[0] in (OURS, "-") for problem in results.problems):
        sys.exit(1)


def _suite(run: Run, name: str) -> None:
    """Runs one suite. A failure is reported, and the other suites continue."""
    if run.out_of_time:
        run.results.blame(name, "all", "cut short", f"left out after {run.minutes:.0f} minutes")
        return
    try:
        SUITES[name](run)
    except (Failed, Missing, Unable, Wrong) as error:
        run.results.blame(name, "-", type(error).__name__.lower(), str(error))
        run.say(f"{name} broke off: {error}")


def _summary(results: Results) -> str:
    parts = []
    for suite in dict.fromkeys(m.suite for m in results.measurements):
        parts += [f"\n{suite}", figures(results, suite)]
    compared = [(suite, metric, subject, f"{ratio:.3f}") for suite, metric, subject, ratio in ratios(results)]
    if compared:
        parts += [
            "\nthe working tree divided by the revision",
            table(("suite", "figure", "revision", "ratio"), compared),
        ]
    if results.problems:
        parts += ["\nmissing, unable or too slow", problems(results.problems)]
    return "\n".join([*parts, "\nbars", acceptance(verdicts(results))])


if __name__ == "__main__":
    main()
