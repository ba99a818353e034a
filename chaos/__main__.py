"""`python -m chaos`: runs the fault lab and writes its report."""

import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from chaos.faults import FAULTS, Fault
from chaos.laboratory import LOADS, Laboratory
from chaos.report import Report
from chaos.scenario import Runner, Scenario
from chaos.stores import STORES

_OVERHEAD_SECONDS = 11.0
"""Of one fault: the load before and after it, and the time until everything is applied."""
_LEAST_SECONDS, _MOST_SECONDS = 3.0, 60.0


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=600, show_default=True, help="About how long it runs.")
@click.option("--seed", type=int, help="Selects the victims and the times of the faults.  [default: a random one]")
@click.option(
    "--only", multiple=True, help="Stores, faults or loads to run, such as sqlite, 'kill worker', http. Repeatable."
)
@click.option(
    "--report", type=click.Path(path_type=Path), default=Path("chaos-report"), show_default=True, help="Directory."
)
@click.option("--list", "listed", is_flag=True, help="List the stores, faults and loads.")
def main(seconds: float, seed: int | None, only: Sequence[str], report: Path, listed: bool) -> None:
    """Runs the fault lab. Ends with 1 if something was lost, applied twice or stuck."""
    if listed:
        _list()
        return
    stores, faults, loads = _select(only)
    seed = secrets.randbelow(10**6) if seed is None else seed
    planned = [(store, fault) for store in stores for fault in faults if store in fault.stores]
    each = min(max(seconds / max(len(planned), 1) - _OVERHEAD_SECONDS, _LEAST_SECONDS), _MOST_SECONDS)
    click.echo(f"seed {seed}: {len(planned)} faults of {each:.1f} s, each against {', '.join(loads)}")
    began = time.monotonic()
    scenarios: list[Scenario] = []
    details: list[str] = []
    for store in stores:
        scenarios += _run_store(store, [one for at, one in planned if at == store], loads, seed, each, details)
    result = Report(seed, scenarios, details, time.monotonic() - began)
    written = result.write(report)
    click.echo("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in result.totals.items()))
    click.echo(f"report: {written[0]} and {written[1]}")
    sys.exit(1 if result.failed else 0)


def _run_store(
    store: str, faults: Sequence[Fault], loads: tuple[str, ...], seed: int, seconds: float, details: list[str]
) -> Iterator[Scenario]:
    if not faults:
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory:
        with Laboratory(store, loads, Path(directory), seed) as lab:
            runner = Runner(lab)
            for load, reason in lab.missing.items():
                yield from (Scenario(store, fault.name, load, None, reason) for fault in faults)
            for fault in faults:
                results = runner.run(fault, seconds)
                for line in _lines(results):
                    click.echo(line)
                yield from results
        details += runner.details


def _lines(results: Sequence[Scenario]) -> Iterator[str]:
    """One line for a fault, and one for each load that failed."""
    first = results[0]
    counted = [(one.load, one.counts) for one in results if one.counts is not None]
    if not counted:
        yield f"{first.store:9} {first.fault:20} not run: {first.reason}"
        return
    load, slowest = max(counted, key=lambda pair: pair[1].stuck_seconds)
    yield (
        f"{first.store:9} {first.fault:20} {'ok' if all(one.holds for _, one in counted) else 'FAILED':6} "
        f"{sum(one.accepted for _, one in counted):5} accepted, {sum(one.lost for _, one in counted)} lost, "
        f"{sum(one.twice for _, one in counted)} twice, {sum(one.repeated for _, one in counted)} repeated, "
        f"stuck {slowest.stuck_seconds:g} s ({load}), took {first.seconds:g} s"
    )
    for load, one in counted:
        if not one.holds:
            yield f"  {load}: {one}"


def _select(only: Sequence[str]) -> tuple[list[str], list[Fault], tuple[str, ...]]:
    """What `--only` names; a kind of which nothing is named is complete."""
    names = {one.name for one in FAULTS}
    if unknown := [one for one in only if one not in {*STORES, *names, *LOADS}]:
        raise click.BadParameter(f"{unknown[0]!r} is no store, fault or load; --list shows them", param_hint="--only")
    stores = [one for one in STORES if one in only] or list(STORES)
    faults = [one for one in FAULTS if one.name in only] or list(FAULTS)
    return stores, faults, tuple(one for one in LOADS if one in only) or LOADS


def _list() -> None:
    click.echo("stores:  " + ", ".join(STORES))
    click.echo("loads:   " + ", ".join(LOADS))
    for fault in FAULTS:
        click.echo(f"fault:   {fault.name:20} {fault.meaning} ({', '.join(fault.stores)})")


if __name__ == "__main__":
    # So that its processes end and its disks are unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
