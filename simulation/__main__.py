"""`python -m simulation`: runs seeds, one seed with its trace, or the planted bugs."""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

import click

from simulation.database import AnyDatabase, Database
from simulation.minimiser import minimise
from simulation.planted import BUGS, Bug, planted
from simulation.run import Result, simulate
from simulation.world import Settings

_TRACE_LINES = 400
_CHUNK = 25


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="Run this many seeds.")
@click.option("--first", type=int, default=1, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run one seed, print its trace and the digest of its history.")
@click.option("--only", help="With --seed: apply only the faults at these addresses, separated by commas; '' for none.")
@click.option("--planted", "bugs", is_flag=True, help="Apply each planted bug until a check finds it.")
@click.option("--bug", help="With --seed: apply this planted bug. With --planted: only this one.")
@click.option("--most", type=int, default=200, show_default=True, help="With --planted: give up after this many seeds.")
@click.option("--store", type=click.Choice(["sqlite", "postgres"]), default="sqlite", show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes for --seeds.")
def main(
    seeds: int | None,
    first: int,
    seed: int | None,
    only: str | None,
    bugs: bool,
    bug: str | None,
    most: int,
    store: str,
    jobs: int,
) -> None:
    """Runs the deterministic simulation. Ends with 1 if a check fails, or if a planted bug is not found."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of texts depends on the hash seed, and the history must not.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])  # noqa: S606
    chosen = [one for one in BUGS if bug in (None, one.name)]
    if not chosen:
        raise click.BadParameter(f"no planted bug {bug!r}; simulation/planted.py has them", param_hint="--bug")
    if bug is not None and store not in (stores := chosen[0].stores):
        raise click.BadParameter(
            f"{bug!r} cannot be planted with --store {store}; use --store {min(stores)}", param_hint="--bug"
        )
    if bugs:
        sys.exit(0 if _find_bugs([one for one in chosen if store in one.stores], first, most, store) else 1)
    if seed is not None:
        sys.exit(0 if _show(seed, only, chosen[0] if bug else Bug("none"), store) else 1)
    sys.exit(0 if _run_seeds(range(first, first + (seeds or 100)), jobs, store) else 1)


def _show(seed: int, only: str | None, bug: Bug, store: str) -> bool:
    """Runs one seed; if a check fails, with the fewest faults."""
    database = _opened(store)
    addresses = None if only is None else tuple(filter(None, only.split(",")))
    with planted(bug, database):
        result = simulate(Settings(seed, only=addresses), database)
        if result.violations and only is None:
            result = minimise(result, database)
    print("\n".join(result.trace))
    _report(result, store, None if bug.name == "none" else bug.name)
    return not result.violations


def _report(result: Result, store: str, bug: str | None = None) -> None:
    faults = ",".join(fault.address for fault in result.faults)
    print(
        f"seed {result.settings.seed}: digest {result.digest}, {result.deliveries} deliveries, {len(result.faults)} faults, "
        f"{result.seconds:.1f} virtual seconds, {len(result.violations)} violations"
    )
    for violation in result.violations:
        print(f"  {violation}")
    if result.violations:
        with_bug = f" --bug '{bug}'" if bug else ""
        with_bug += "" if store == "sqlite" else f" --store {store}"
        print(f"replay: python -m simulation --seed {result.settings.seed} --only '{faults}'{with_bug}")


def _run_seeds(seeds: Iterable[int], jobs: int, store: str) -> bool:
    seeds, started = list(seeds), time.monotonic()
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    failed: list[int] = []
    done = deliveries = faults = 0
    with contextlib.ExitStack() as stack:
        run = map if jobs == 1 else stack.enter_context(ProcessPoolExecutor(jobs)).map
        for chunk in run(partial(_run_chunk, store=store), chunks):
            for seed, sound, count, applied in chunk:
                done, deliveries, faults = done + 1, deliveries + count, faults + applied
                if not sound:
                    failed.append(seed)
            if failed:
                break
    took, used = time.monotonic() - started, _processor_seconds()
    print(
        f"{done} seeds in {took:.1f} s, {used:.1f} s of processor time ({done / used:.1f} per processor second): "
        f"{deliveries} deliveries, {faults} faults, {len(failed)} seeds failed"
    )
    if failed:
        print(f"first failure, with the fewest faults that show it (seeds {failed[:20]}):")
        database = _opened(store)
        result = minimise(simulate(Settings(failed[0]), database), database)
        print("\n".join(result.trace[-_TRACE_LINES:]))
        _report(result, store)
    return not failed


def _processor_seconds() -> float:
    """The processor time of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _run_chunk(seeds: list[int], store: str) -> list[tuple[int, bool, int, int]]:
    database = _prepared_database(store)
    results = [simulate(Settings(seed), database) for seed in seeds]
    return [(one.settings.seed, not one.violations, one.deliveries, len(one.faults)) for one in results]


def _opened(store: str) -> AnyDatabase:
    if store == "sqlite":
        return Database()
    # It starts a server, and needs what the tests need.
    from simulation.postgres import PostgresDatabase

    return PostgresDatabase()


@cache
def _prepared_database(store: str) -> AnyDatabase:
    """The database of this process, for many seeds. What exists now is excluded from the collection of garbage after each seed."""
    database = _opened(store)
    simulate(Settings(0), database)
    gc.freeze()
    return database


def _find_bugs(bugs: Sequence[Bug], first: int, most: int, store: str) -> bool:
    database, missed = _prepared_database(store), 0
    print(f"{'planted bug':42} {'found by':28} {'seeds':>5} {'seconds':>8}")
    for bug in bugs:
        started = time.process_time()
        found, seeds = find(bug, database, first, most)
        missed += found is None
        shown = "NOT FOUND" if found is None else found
        print(f"{bug.name:42} {shown:28} {seeds:5} {time.process_time() - started:8.1f}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} found")
    return not missed


def find(bug: Bug, database: AnyDatabase, first: int, most: int) -> tuple[str | None, int]:
    """The first check that finds the bug, and the number of seeds that it took."""
    with planted(bug, database):
        for seed in range(first, first + most):
            result = simulate(Settings(seed), database)
            if result.violations:
                return result.violations[0].check, seed - first + 1
    return None, most


if __name__ == "__main__":
    main()
