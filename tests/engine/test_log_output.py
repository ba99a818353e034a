"""Where log lines go: never to stdout, never in the way of the event loop, and repeated ones only as a count."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

import holdfast
from holdfast import Holdfast, RetryPolicy, correlate
from holdfast._log import Background, background, get_logger
from holdfast.engine.telemetry.repeats import MOST_KINDS, SHOWN, Repeats
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, eventually, logged, working

SQLITE = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)

PROGRAM = """
import asyncio, signal, sys, threading
from pathlib import Path
from holdfast import Holdfast, RetryPolicy, WorkerOptions
{configure}
hf = Holdfast("sqlite:///{folder}/shop.db")
runs = 0

@hf.job(retry=RetryPolicy.fixed(0, attempts=3))
async def charge(n: int) -> None:
    global runs
    runs += 1
    if runs == 300:
        Path("{folder}/ready").touch()
    raise type(f"Error{{n % 90}}", (Exception,), {{}})("x" * 300)

async def main() -> None:
    await hf._runtime.publish([charge._message((n,), {{}})[1] for n in range(400)], None)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await hf.work(stop=stop)

if __name__ == "__main__":
    {start}
"""
EMBEDDED = "asyncio.run(main())"
WAYS = {
    "unconfigured": ("", EMBEDDED),
    "structlog": ("import structlog; structlog.configure()", EMBEDDED),
    "command": (
        "",
        "from holdfast.interfaces.cli.logs import configure_logs; configure_logs('auto', 'info'); asyncio.run(main())",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_ends_at_sigterm_although_its_output_is_not_read(tmp_path: Path, way: str) -> None:
    configure, start = WAYS[way]
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM.format(folder=tmp_path, configure=configure, start=start))
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        try:
            _wait_for(tmp_path / "ready", worker)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()


def test_an_embedded_worker_logs_to_stderr_and_never_to_stdout(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    start = EMBEDDED.replace("main()", "once()")
    once = "async def once():\n    await charge.enqueue(1)\n    await hf.work(WorkerOptions(until_idle=True))\n"
    text = PROGRAM.format(folder=tmp_path, configure="", start=start).replace("if __name__", f"{once}\nif __name__")
    program.write_text(text)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "")
    retry, dead = (f"delivery retried: charge attempt 1/3: Error1: {'x' * 299}", "dead letter: charge")
    assert retry in ran.stderr
    assert dead in ran.stderr
    assert ran.stderr.count("Traceback (most recent call last)") == 2
    assert "worker started" not in ran.stderr


@SQLITE
async def test_without_a_configuration_lines_are_records_of_logging_and_hide_secrets(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()
    hf = make_app(redact=["**.card"])

    @hf.job(retry=RetryPolicy.none())
    async def charge(card: str) -> None:
        raise ValueError(f"no such card: {card}, password=hunter2")

    with correlate(message="hello", **{"x-note": "\x1b[2Jgone"}):
        await charge.enqueue("4111-1111")
    with caplog.at_level(logging.INFO, "holdfast"):
        await drain(hf)
    started, dead, *_ = caplog.records
    assert (started.name, started.levelname, started.getMessage()[:14]) == ("holdfast.worker", "INFO", "worker started")
    assert (dead.name, dead.levelname) == ("holdfast.alert", "ERROR")
    known: Any = dead
    assert (known.event, known.consumer, known.attempt, known.error_type) == ("dead letter", "charge", 1, "ValueError")
    assert (known.header_message, vars(dead)["x-note"]) == ("hello", "\\x1b[2Jgone")
    assert dead.getMessage().startswith("dead letter: charge attempt 1/1: ValueError: no such card")
    assert f"holdfast dlq show {known.dlq_id}" in dead.getMessage()
    assert "in charge\n" in caplog.text
    assert "4111" not in caplog.text
    assert "hunter2" not in caplog.text
    assert "\x1b" not in caplog.text


@SQLITE
async def test_structlog_keeps_the_configuration_of_the_application(hf: Holdfast, log: Log) -> None:
    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    with structlog.contextvars.bound_contextvars(deploy="7"):
        await drain(hf)
    (started,) = logged(log, "worker started")
    assert started["deploy"] == "7"


def test_lines_that_do_not_fit_are_dropped_and_counted(log: Log) -> None:
    background = Background(most=10)
    stuck, done = threading.Event(), []
    with background.running():
        background.submit(stuck.wait)
        began = time.monotonic()
        for n in range(100):
            background.submit(lambda n=n: done.append(n))  # type: ignore[misc]
        assert not background.flush(0.05)
        assert time.monotonic() - began < 5
        stuck.set()
        assert background.flush(10)
    assert len(done) <= 11
    (line,) = logged(log, "log lines dropped")
    assert line["lines"] == 100 - len(done)


def test_a_handler_that_raises_loses_its_line_and_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    background, done = Background(), []
    with background.running():
        background.submit(lambda: 1 / 0)
        background.submit(lambda: done.append(1))
    assert done == [1]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_outside_a_worker_a_line_is_written_at_once(log: Log) -> None:
    get_logger("holdfast.test").info("now")
    assert logged(log, "now")


async def test_a_hundred_thousand_dead_letters_alike_are_a_few_lines(log: Log) -> None:
    now = [0.0]
    repeats, logger = Repeats(clock=lambda: now[0]), get_logger("holdfast.test")
    for n in range(100_000):
        now[0] = n / 1000
        fields: dict[str, object] = {"consumer": "mail", "n": n, "stack_trace": 'File "/a/mail.py", line 7, in send'}
        repeats.log(logger.error, "dead letter", "mail", "f1", fields)
    repeats.close()
    background.flush()
    assert len(log) == 2 * (SHOWN + 1)
    assert sum(line.get("folded", 1) for line in log) == 100_000
    assert [line["n"] for line in log if "stack_trace" in line] == [0, 60_000]
    last = log[-1]
    assert (last["n"], last["folded"], last["folded_seconds"]) == (99_999, 40_000 - SHOWN, 40.0)


async def test_each_kind_is_seen_in_full_up_to_a_bound(log: Log) -> None:
    repeats, logger = Repeats(), get_logger("holdfast.test")
    for n in range(10 * MOST_KINDS):
        repeats.log(logger.warning, "delivery retried", "mail", f"kind {n}", {"stack_trace": "…", "n": n})
    repeats.close()
    background.flush()
    in_full = [line for line in log if "stack_trace" in line]
    assert len(in_full) == MOST_KINDS + 1
    assert sum(line.get("folded", 1) for line in log) == 10 * MOST_KINDS


@SQLITE
async def test_a_stopping_worker_says_in_one_line_how_much_it_gave_back(hf: Holdfast, log: Log) -> None:
    ran = 0

    @hf.job()
    async def work(n: int) -> None:
        nonlocal ran
        ran += 1
        await asyncio.sleep(0.001)

    await hf._runtime.publish([work._message((n,), {})[1] for n in range(3000)], None)
    async with working(hf, concurrency=2):
        await eventually(lambda: ran > 500)
    given_back = logged(log, "delivery released")
    assert {line["log_level"] for line in given_back} <= {"debug"}
    (stopped,) = logged(log, "worker stopped")
    assert stopped["released"] == len(given_back)


def _wait_for(path: Path, worker: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert worker.poll() is None, "the worker ended too early"
        assert time.monotonic() < deadline, "the worker stopped working"
        time.sleep(0.05)


def test_every_line_comes_from_our_own_logger() -> None:
    """structlog's default writes to stdout, in the event loop."""
    source = Path(holdfast.__file__).parent
    found = [path.name for path in source.rglob("*.py") if "structlog.get_logger(" in path.read_text()]
    assert found == ["_log.py"]
