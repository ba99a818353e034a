"""What a visitor of the demo sees."""

from collections import Counter
from io import StringIO

from rich.console import Console

from holdfast.interfaces.demo.screen import LiveScreen, Screen, open_screen
from holdfast.interfaces.demo.snapshot import Snapshot, State

NOW = Snapshot(
    Counter({("receipts", State.RETRYING): 7, ("receipts", State.DELIVERED): 21, ("stock", State.DELIVERED): 28}),
    {"receipts": "mail", "stock": "warehouse"},
    {4242: 17},
)


def test_without_a_terminal_the_story_is_plain_lines() -> None:
    file = StringIO()
    screen = open_screen(Console(file=file, width=40), "Holdfast demo")
    assert type(screen) is Screen
    screen.say("a line that is longer than the forty columns of this terminal")
    screen.show(NOW)
    screen.close()
    title, line = file.getvalue().splitlines()
    assert title == "Holdfast demo"
    assert line.endswith("s  a line that is longer than the forty columns of this terminal")


def test_on_a_narrow_terminal_every_number_can_be_read() -> None:
    file = StringIO()
    console = Console(file=file, width=80, height=30, force_terminal=True, color_system=None, legacy_windows=False)
    screen = open_screen(console, "Holdfast demo")
    assert isinstance(screen, LiveScreen)
    screen.say("worker 4242 was killed")
    screen.show(NOW)
    screen.close()
    frame = file.getvalue().rpartition("Holdfast demo")[2]
    rows = {line.split()[0]: line.split()[1:] for line in frame.splitlines() if line.strip()}
    assert rows["consumer"] == ["queue", "waiting", "in", "flight", "retrying", "parked", "dead", "delivered"]
    assert rows["receipts"] == ["mail", "0", "0", "7", "0", "0", "21"]
    assert rows["all"] == ["0", "0", "7", "0", "0", "49"]
    assert "4242 (17 in flight)" in frame
    assert "worker 4242 was killed" in frame


def test_the_newest_line_is_seen_on_a_terminal_of_any_size() -> None:
    file = StringIO()
    console = Console(file=file, width=60, height=20, force_terminal=True, color_system=None, legacy_windows=False)
    screen = open_screen(console, "Holdfast demo")
    for number in range(30):
        screen.say(f"line {number} " + "is long " * 10)
    frame = file.getvalue().rpartition("Holdfast demo")[2]
    screen.close()
    assert "line 29" in frame
    assert "line 20" not in frame
    assert len(frame.splitlines()) <= 20
