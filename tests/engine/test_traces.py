"""What a stored stack trace shows: the application's frames and true causes, nothing of how the worker was started."""

import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from holdfast import Context, Holdfast, RetryPolicy
from holdfast.stores.queries.query import Filter, deliveries, runs

NEVER = ("no running event loop", "uvloop", "the surrounding one", "holdfast/engine/", "holdfast/app/")


def _fail() -> None:
    raise ValueError("the true one")


def _declare(hf: Holdfast, kind: str) -> None:
    retry = RetryPolicy.none()
    if kind == "async":

        @hf.consumer("order.placed", name="shop", retry=retry)
        async def asynchronous(payload: object) -> None:
            _fail()
    elif kind == "thread":

        @hf.consumer("order.placed", name="shop", retry=retry)
        def threaded(payload: object) -> None:
            _fail()
    elif kind == "timeout":

        @hf.consumer("order.placed", name="shop", retry=retry, timeout="10s")
        async def limited(ctx: Context, payload: object) -> None:
            _fail()
    elif kind == "projector":

        @hf.projector("order.placed", name="shop", retry=retry)
        async def projected(payload: object) -> None:
            _fail()
    else:

        @hf.consumer("order.placed", name="shop", retry=retry)
        async def causes(payload: object) -> None:
            try:
                _fail()
            except ValueError:
                raise KeyError("the outer one")  # noqa: B904


@pytest.mark.parametrize("kind", ["async", "thread", "timeout", "projector", "chained"])
def test_a_stored_trace_begins_in_the_application_in_any_loop(tmp_path: Path, kind: str) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")
    _declare(hf, kind)
    hf.sync.publish("order.placed", {}, conn=None)
    try:
        raise RuntimeError("the surrounding one")
    except RuntimeError:
        hf.run(until_idle=True)
    (found,) = hf.store.run_sync(deliveries(Filter()))
    (run,) = hf.store.run_sync(runs(found.delivery.id))
    assert run.trace is not None
    assert [text for text in NEVER if text in run.trace] == []
    assert run.trace.startswith("Traceback (most recent call last):\n")
    assert "test_traces.py" in run.trace.splitlines()[1]
    assert "ValueError: the true one" in run.trace
    assert run.trace.count("Traceback") == (2 if kind == "chained" else 1)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_reaction_without_a_loop_names_its_true_cause_alone(tmp_path: Path, kind: str) -> None:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    try:
        hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")
        if kind == "plain":

            @hf.reaction("order.placed")
            def react(payload: object) -> None:
                _fail()
        else:

            @hf.reaction("order.placed")
            async def react_too(payload: object) -> None:
                _fail()

        hf.sync.publish("order.placed", {}, conn=None)
        line = _first(capture)
    finally:
        structlog.reset_defaults()
    assert [text for text in NEVER if text in line["stack_trace"]] == []
    assert "ValueError: the true one" in line["stack_trace"]


def _first(capture: LogCapture) -> Any:
    deadline = time.monotonic() + 20
    while not (found := [line for line in capture.entries if "stack_trace" in line]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]
