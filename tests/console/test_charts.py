"""The charts of the overview: any range, axes, and links that change the range without a script."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from holdfast.core.change import DeadLetter
from holdfast.core.identity import uuid7
from holdfast.interfaces.console.pages import chart
from holdfast.ops.queries.throughput import TrendSlot
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs
from tests.support.builders import claim_all, failure, finish, message, put, register_consumers

BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


async def _publish(store: Store, *ages: timedelta) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    now = datetime.now(UTC)
    await put(
        store,
        *(message()._replace(id=uuid7(int((now - age).timestamp() * 1000), n)) for n, age in enumerate(ages)),
    )


def _bars(page: str, title: str) -> list[tuple[str, str]]:
    """The link and the text of each bar of a chart."""
    figure = page[page.index(f"<b>{title}</b>") :].partition("</figure>")[0]
    found = re.findall(r'<a href="([^"]*)" tabindex="-1"><title>([^<]*)</title>', figure)
    return [(unescape(link), unescape(text)) for link, text in found]


@BOTH
async def test_a_range_of_days_is_drawn_and_each_bar_narrows_it(client_as: ClientAs, store: Store) -> None:
    now = datetime.now(UTC)
    # In the middle of an hour and of its minutes, so that no bar begins between them.
    first = now - (now - timedelta(days=3)).replace(minute=30, second=30)
    await _publish(store, *(first + timedelta(minutes=n) for n in range(5)), timedelta(days=20))
    async with client_as("viewer") as client:
        hour = (await client.get("/ops/")).text
        week = (await client.get("/ops/?since=7d")).text
        bars = _bars(week, "Throughput")
        assert _bars(hour, "Throughput") == []
        assert [text.partition(" accepted")[0][-2:] for _, text in bars] == [" 5"]
        link = bars[0][0]
        while link.startswith("/ops/?"):  # until a bar is a minute
            bars = _bars((await client.get(link)).text, "Throughput")
            link = bars[0][0]
        assert link.startswith("/ops/messages?since=")
        listed = (await client.get(link)).text
    assert listed.count("<tr data-row") == 1


@BOTH
async def test_dead_letters_are_drawn_when_they_failed(client_as: ClientAs, store: Store) -> None:
    await _publish(store, timedelta(days=2))
    (claimed,) = await claim_all(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    async with client_as("viewer") as client:
        page = (await client.get("/ops/?since=7d")).text
        ((link, text),) = _bars(page, "Failures")
    assert text.endswith(" 1 dead letters")
    assert "/ops/?since=" in link
    assert '<span data-peak="1 in 7d' in page


@ONE
async def test_the_range_is_moved_and_widened_by_links(client_as: ClientAs, store: Store) -> None:
    await _publish(store, timedelta(minutes=5))
    async with client_as("viewer") as client:
        page = unescape((await client.get("/ops/?since=2026-11-01T00:00Z&until=2026-11-01T01:00Z")).text)
        wrong = await client.get("/ops/?since=1h&until=2h")
        later = await client.get("/ops/?since=2099-01-01T00:00Z")
    nav = page[page.index('aria-label="Move the time range"') :].partition("</nav>")[0]
    assert re.findall(r'href="([^"]*)"', nav) == [
        "/ops/?since=2026-10-31T23%3A30Z&until=2026-11-01T00%3A30Z",
        "/ops/?since=2026-11-01T00%3A30Z&until=2026-11-01T01%3A30Z",
        "/ops/?since=2026-10-31T23%3A00Z&until=2026-11-01T02%3A00Z",
    ]
    assert "/ops/dead?since=2026-11-01T00%3A00Z&until=2026-11-01T01%3A00Z" in page
    assert [wrong.status_code, later.status_code] == [400, 400]
    assert "Oldest waiting" not in page


@ONE
async def test_the_range_can_be_widened_again_and_again(client_as: ClientAs, store: Store) -> None:
    await _publish(store, timedelta(minutes=5))
    async with client_as("viewer") as client:
        address = "/ops/?since=30d"
        for _ in range(12):
            answer = await client.get(address)
            assert answer.status_code == 200
            (address,) = re.findall(r'href="([^"]*)">Zoom out', unescape(answer.text))


@pytest.mark.parametrize(
    ("width", "slots", "ticks"),
    [
        (timedelta(seconds=1), 60, ("08:00:00", "08:00:15", "08:00:30", "08:00:45", "08:01:00")),
        (timedelta(minutes=1), 60, ("08:00", "08:15", "08:30", "08:45", "09:00")),
        (timedelta(hours=3), 56, ("1 Nov 08:00", "3 Nov 02:00", "4 Nov 20:00", "6 Nov 14:00", "8 Nov 08:00")),
        (timedelta(days=1), 60, ("1 Nov", "16 Nov", "1 Dec", "16 Dec", "31 Dec")),
    ],
)
def test_the_time_axis_shows_what_distinguishes_its_times(width: timedelta, slots: int, ticks: tuple[str, ...]) -> None:
    begin = datetime(2026, 11, 1, 8, tzinfo=UTC)
    drawn = [
        TrendSlot(at=begin + n * width, width=width, accepted=0, delivered=0, failed=0, died=0) for n in range(slots)
    ]
    assert chart.time_axis(drawn, begin + timedelta(days=900)).ticks == ticks
    assert chart.time_axis(drawn, begin).ticks == (*ticks[:-1], "now")


@pytest.mark.parametrize(
    ("highest", "scale"), [(0, ("2", "1", "0")), (3, ("5", "2.5", "0")), (8_300, ("10k", "5k", "0"))]
)
def test_the_scale_of_a_chart_is_a_round_number(highest: int, scale: tuple[str, ...]) -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    slot = TrendSlot(at=at, width=timedelta(minutes=1), accepted=highest, delivered=highest, failed=0, died=highest)
    assert chart.throughput([slot], lambda _: "").scale == chart.failures([slot], lambda _: "").scale == scale


@ONE
async def test_a_chart_has_its_figures_as_a_table(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    async with client_as("viewer") as client:
        page = unescape((await client.get("/ops/")).text)
    table = page[page.index('id="trend-figures"') :].partition("</details>")[0]
    assert sum(int(text.replace(",", "")) for text in re.findall(r'data-th="Accepted">(\d+)<', table)) == sum(
        one.accepted for one in await ops.trend()
    )
