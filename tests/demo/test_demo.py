"""`holdfast demo` as a visitor meets it: a process, its output, its exit code, and what it leaves behind."""

import re
import signal
import sqlite3
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import psutil
import psycopg
import pytest

from tests.demo.process import Demo, demo, summary_of
from tests.servers.postgres import PostgresServer

CHAPTERS = (
    "the shop is open",
    "the mail server just died",
    "every one of those receipts has been sent",
    "was killed with SIGKILL",
    "were taken over and are done",
    "webhook receiver just died",
    "none dead",
    "with a bug in stock",
    "dead letters of one group (KeyError in stock) are replayed",
    "the audit records who replayed them",
)


def test_the_story_runs_in_seconds_and_every_promise_is_kept(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "12") as running:
        running.read_until("the mail server just died")
        _check_console(running)
        assert running.end() == 0, running.output
        _check_story(running)


@pytest.mark.soak
def test_the_story_runs_on_postgresql_in_a_schema_that_is_gone_afterwards(
    tmp_path: Path, postgres18: PostgresServer
) -> None:
    dsn = postgres18.create_database("demo")
    with demo(tmp_path, "--seconds", "10", "--dsn", dsn) as running:
        assert running.end() == 0, running.output
        _check_story(running)
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select nspname from pg_namespace where nspname like 'holdfast%'").fetchall()
    assert found == []
    postgres18.drop_database("demo")


@pytest.mark.long
def test_an_interrupt_finishes_what_was_ordered_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "60") as running:
        running.read_until("the mail server just died")
        running.signal(signal.SIGINT)
        assert running.end() == 130, running.output
        summary = summary_of(running.output)
        assert summary.published == summary.delivered > 0
        assert (summary.lost, summary.applied_twice) == (0, 0)
        _check_nothing_is_left(running)


def test_without_seconds_an_interrupt_is_the_ordinary_end(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        running.read_until("the shop is open")
        running.signal(signal.SIGINT)
        assert running.end() == 0, running.output
        summary_of(running.output)
        _check_nothing_is_left(running)


@pytest.mark.long
def test_a_second_interrupt_leaves_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "10") as running:
        running.read_until("was killed with SIGKILL")  # its lease keeps the shop from closing for a while
        running.signal(signal.SIGINT)
        running.read_until("closing")
        running.signal(signal.SIGINT)
        assert running.end() == 130, running.output
        assert "results were not checked" in running.output
        _check_nothing_is_left(running)


def test_a_termination_in_the_first_moment_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "60") as running:
        running.read_until("Holdfast demo")
        running.signal(signal.SIGTERM)
        assert running.end() == 130, running.output
        _check_nothing_is_left(running)


def test_a_demo_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "60") as running:
        running.read_until("the shop is open")
        workers = running.workers
        assert len(workers) == 2
        running.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive


@pytest.mark.long
def test_an_effect_that_is_missing_breaks_the_promise_and_the_exit_code(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "60") as running:
        running.read_until("the mail server just died")
        found = re.search(r"sqlite:///(\S+)", running.output)
        assert found
        with sqlite3.connect(found[1], timeout=10) as thief:
            assert thief.execute("delete from charges where id = (select min(id) from charges)").rowcount == 1
        thief.close()
        running.signal(signal.SIGINT)
        assert running.end() == 1, running.output
        assert "BROKEN: 1 deliveries had no effect: billing of order" in running.output
        assert summary_of(running.output).lost == 1


def _check_console(running: Demo) -> None:
    address = re.search(r"the web console is at (http://\S+)", running.output)
    assert address
    opener = build_opener(ProxyHandler({}))
    with opener.open(f"{address[1]}/consumers", timeout=20) as page:
        shown = page.read().decode()
    assert all(consumer in shown for consumer in ("receipts", "billing", "stock", "webhooks"))


def _check_story(running: Demo) -> None:
    at = -1
    for chapter in CHAPTERS:
        at = running.output.find(chapter, at + 1)
        assert at >= 0, f"{chapter!r} is missing:\n{running.output}"
    summary = summary_of(running.output)
    assert summary.published == summary.delivered > 200
    assert summary.dead == summary.replayed > 0
    assert summary.retried > 0
    assert (summary.crashes, summary.lost, summary.applied_twice) == (1, 0, 0)
    _check_nothing_is_left(running)


def _check_nothing_is_left(running: Demo) -> None:
    assert not running.workers
    assert not list(running.folder.iterdir())
