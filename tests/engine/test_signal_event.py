"""The event that ends a supervisor and the demo: a signal may arrive at any line of the code that waits for it."""

import subprocess
import sys

import pytest

from holdfast.runtime.signal_event import SignalEvent

PROGRAM = """
import signal, sys, threading
from holdfast.runtime.signal_event import SignalEvent

event = {event}()
signal.signal(signal.SIGUSR1, lambda *_: event.set())

def at_each_line(frame, what, _):
    if frame.f_code.co_name == "wait" and what == "line":
        signal.raise_signal(signal.SIGUSR1)
    return at_each_line

sys.settrace(at_each_line)
event.wait(0.1)
print("continued")
"""


def run(event: str, seconds: float) -> str:
    program = PROGRAM.format(event=event)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=seconds).stdout


def test_a_signal_at_any_line_of_the_wait_blocks_nothing() -> None:
    assert run("SignalEvent", 60) == "continued\n"


@pytest.mark.long
def test_with_the_event_of_threading_the_handler_would_wait_for_ever() -> None:
    """The reason for the class. If this fails on a new Python, use its event."""
    with pytest.raises(subprocess.TimeoutExpired):
        run("threading.Event", 5)


def test_it_is_awaited_no_longer_than_allowed_and_not_at_all_once_set() -> None:
    event = SignalEvent()
    assert not event.wait(0.06)
    event.set()
    assert event.is_set()
    assert event.wait(60)
