"""The console in a real browser: an operator finds failures and replays them, with scripts and without."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast import Holdfast
from holdfast.interfaces.server.standalone import serve_in_thread
from holdfast.ops.service import Operations, SyncOperations
from holdfast.stores.admin.plan import Action
from holdfast.stores.queries.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.console.shop import BROKEN, furnish
from tests.support.browser import CHROMIUM, browser, violations
from tests.support.worker import drain
from tests.workflows.test_operating import order

__all__ = ["browser"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was not tested in a browser"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


_COVERED = """Math.max(0, ...[...document.querySelectorAll("td.do")].map(
    (one) => one.previousElementSibling.getBoundingClientRect().right - one.getBoundingClientRect().left))
"""
"""How many pixels of another column are below the buttons of a row."""


@dataclass
class Shop:
    """A running console of a shop after failures, and the errors of the browser."""

    address: str
    ops: SyncOperations
    browser_errors: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> Page:
        page.on("pageerror", lambda error: self.browser_errors.append(str(error)))
        page.on(
            "console",
            lambda entry: self.browser_errors.append(entry.text) if entry.type in ("error", "warning") else None,
        )
        page.add_init_script(_WATCH)
        return page


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    path = tmp_path / "shop.db"
    ops = SqliteStore(path)
    ops.migrate()
    _furnished(path)
    with serve_in_thread(Operations(SqliteStore(path)), port=0, actor="ada") as address:
        opened = Shop(address, SyncOperations(ops))
        yield opened
    ops.close_sync()
    assert opened.browser_errors == []


def _furnished(path: Path) -> None:
    async def run() -> None:
        store = SqliteStore(path)
        await furnish(store)
        await store.close()

    # In a thread: the browser's event loop runs in this one.
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()


@contextmanager
def _page(browser: Browser, shop: Shop, **more: object) -> Iterator[Page]:
    context = browser.new_context(base_url=shop.address, **more)  # type: ignore[arg-type]
    context.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    page = shop.watch(context.new_page())
    yield page
    context.close()


def _find_the_broken_deploy(page: Page) -> None:
    page.goto("/")
    expect(page.locator("h1")).to_contain_text("32 dead letters in 2 failure groups")
    page.get_by_role("link", name="KeyError in stock").click()
    expect(page.locator("tr[data-row]")).to_have_count(BROKEN)
    expect(page.locator("#inputs")).to_contain_text("please gift-wrap")
    page.locator("tbody tr a.main").first.click()
    expect(page.locator(".broke")).to_contain_text("KeyError 'kettle'")
    page.locator(".timeline summary").click()
    expect(page.locator(".timeline pre")).to_contain_text("most recent call last")
    expect(page.locator(".timeline strong")).to_contain_text(
        ["Request", "Published", "Accepted", "Attempt 1: failed", "Dead letter"]
    )


def _replay_them_all(page: Page, reload: Callable[[], object] | None = None) -> None:
    page.goto("/groups")
    page.get_by_role("button", name=f"Preview replay of {BROKEN}").click()
    expect(page.locator(".big")).to_contain_text(f"{BROKEN} deliveries would be replayed")
    page.get_by_label("Reason").fill("shelf is back")
    page.get_by_role("button", name=f"Replay {BROKEN} deliveries").click()
    expect(page.locator("progress")).to_be_visible()
    if reload is not None:
        reload()
    expect(page.locator("h1 .status")).to_have_text("done")
    expect(page.locator(".progress")).to_contain_text(f"{BROKEN} replayed")
    expect(page.locator(".progress")).to_contain_text("shelf is back")


def _discard_one(page: Page, reload: Callable[[], object] | None = None) -> None:
    page.goto("/dead?consumer=billing")
    expect(page.locator("tbody tr")).to_have_count(4)
    page.locator("tbody tr a.main").first.click()
    page.get_by_role("button", name="Discard").click()
    page.get_by_label("Reason").fill("test order")
    page.get_by_role("button", name="Discard 1 delivery").click()
    if reload is not None:
        reload()
    expect(page.locator(".progress")).to_contain_text("1 discarded")


def _pause_a_queue(page: Page) -> None:
    page.goto("/queues")
    row = page.locator("tr", has_text="warehouse")
    row.locator("summary").click()
    row.get_by_label("Reason").fill("counting the shelves")
    row.get_by_role("button", name="Pause").click()
    expect(page.locator(".flash")).to_contain_text("Queue warehouse paused")
    expect(page.locator("tr", has_text="warehouse")).to_contain_text("paused")


def _check_the_store(shop: Shop) -> None:
    assert shop.ops.stats().failed == 3
    assert "warehouse" in shop.ops.stats().paused_queues
    assert {(one.actor, one.action) for one in shop.ops.audit(limit=3)} == {("ada", "finish"), ("ada", "pause")}


def test_an_operator_finds_failures_and_replays_them(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop) as page:
        _find_the_broken_deploy(page)
        _replay_them_all(page)  # the page updates automatically
        _discard_one(page)
        _pause_a_queue(page)
        assert page.evaluate("window.violations") == []
    _check_the_store(shop)


def test_the_same_without_scripts(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop, java_script_enabled=False) as page:
        _find_the_broken_deploy(page)
        _replay_them_all(page, lambda: _reload_until_done(page))
        _discard_one(page, lambda: _reload_until_done(page))
        _pause_a_queue(page)
    _check_the_store(shop)


def _reload_until_done(page: Page) -> None:
    while page.locator("h1 .status").inner_text() != "done":
        page.get_by_role("link", name="Refresh").click()


def test_what_is_on_screen_stays_up_to_date_but_not_under_the_readers_hand(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop) as page:
        page.clock.install()
        page.goto("/queues")
        payments = page.locator("tr", has_text="payments")
        expect(payments).not_to_contain_text("paused")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
        shop.ops.pause_queue("payments", actor="grace")
        page.clock.run_for(5_000)
        expect(payments).not_to_contain_text("paused")
        page.evaluate("getSelection().removeAllRanges()")
        page.clock.run_for(3_000)
        expect(payments).to_contain_text("paused")
        payments.locator("summary").click()  # an open question
        shop.ops.resume_queue("payments", actor="grace")
        page.clock.run_for(5_000)
        expect(payments).to_contain_text("paused")
        page.keyboard.press("Escape")
        page.clock.run_for(3_000)
        expect(payments).not_to_contain_text("paused")
        expect(page.locator("#live")).to_contain_text("Live")


def test_the_keyboard_goes_everywhere(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop) as page:
        page.goto("/")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("x")
        expect(page.locator("h1")).to_have_text("Dead letters")
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.locator("tbody tr").first.locator("a.main")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/deliveries/"))
        page.keyboard.press("/")
        expect(page.locator("#find")).to_be_focused()
        page.keyboard.type("req-unknown")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("No results")


def test_a_chart_is_zoomed_by_dragging_and_shows_the_bar_under_the_pointer(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop) as page:
        page.goto("/")
        failures = page.locator("figure", has_text="Failures")
        expect(failures.locator("[data-peak]")).to_contain_text("32 in 1h")
        failures.locator(".chart a").last.hover()
        expect(failures.locator("[data-peak]")).to_contain_text("dead letters")
        box = failures.locator(".chart").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.505, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.995, box["y"] + 30, steps=4)
        page.mouse.up()
        expect(page).to_have_url(re.compile(r"since=[^&]+&until="))
        expect(page.locator(".ticks").first).to_have_text(re.compile(r"\d\d:\d\d(:\d\d)?"))
        assert page.evaluate("window.violations") == []


def test_a_view_is_saved_used_and_removed_without_scripts(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop, java_script_enabled=False) as page:
        page.goto("/dead?consumer=billing")
        page.locator("summary", has_text="Save view").click()
        page.get_by_label("Name").fill("Billing")
        page.get_by_role("button", name="Save view").click()
        page.goto("/audit")
        page.get_by_role("link", name="Billing", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(4)
        page.get_by_role("button", name="Remove saved view").click()
        expect(page.get_by_role("link", name="Billing", exact=True)).to_have_count(0)


def _start_order(path: Path) -> str:
    """A run with a blocked step, a step that waits for a signal, and a step that waits for its trigger."""
    found: list[str] = []

    async def run() -> None:
        hf = Holdfast(f"sqlite:///{path}")
        started = await order(hf).using(key="order:7").start("lamp")
        await drain(hf)
        found.append(str(started.id))
        await hf.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    return found[0]


def _start_group(path: Path) -> str:
    """A group of jobs and the job after it, which all wait."""
    hf = Holdfast(f"sqlite:///{path}")

    @hf.job(result="1h")
    def resize(n: int) -> int:
        return n

    @hf.job()
    def report(sizes: list[int]) -> None: ...

    handle = hf.group([resize.call(n) for n in range(3)]).then(report).sync.enqueue()
    hf.store.close_sync()
    return str(handle.id)


@pytest.mark.parametrize("scripts", [True, False])
def test_an_operator_reads_a_run_and_sends_it_commands(
    browser: Browser, shop: Shop, tmp_path: Path, scripts: bool
) -> None:
    run = _start_order(tmp_path / "shop.db")
    with _page(browser, shop, java_script_enabled=scripts, viewport={"width": 360, "height": 740}) as page:
        page.goto("/workflows?state=blocked")
        page.locator("tbody tr", has_text="order:7").get_by_role("link").first.click()
        expect(page.locator("h1 .status")).to_have_text("blocked")
        expect(page.locator(".run-graph .word")).to_have_text(["done", "blocked", "waiting", "idle", "idle"])
        expect(page.locator(".broke")).to_contain_text("Step charge is blocked")
        expect(page.locator(".timeline")).to_contain_text("charge: blocked")
        page.locator("summary", has_text="Send signal").click()
        page.get_by_label("Value, as JSON").fill('{"by": "ada"}')
        page.get_by_role("button", name="Send signal").click()
        expect(page.locator(".flash")).to_be_visible()
        page.goto(f"/workflows/{run}")
        page.locator("summary", has_text="Retry").click()
        page.get_by_label("Reason").locator("visible=true").first.fill("new card")
        page.get_by_role("button", name="Retry").click()
        expect(page.locator("h1 .status")).to_have_text("running")
        expect(page.locator(".run-graph .word")).to_have_text(["done", "replaying", "waiting", "idle", "idle"])
        if scripts:
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.evaluate("window.violations") == []
    entries = shop.ops.workflow_run(UUID(run)).audit
    assert [(one.action, one.actor) for one in entries] == [("retry", "ada"), ("signal", "ada")]


def test_no_screen_is_wider_than_a_small_phone(browser: Browser, shop: Shop) -> None:
    dead = shop.ops.deliveries(limit=1)[0].delivery
    with _page(browser, shop, viewport={"width": 360, "height": 740}) as page:
        lists = ("/dead", "/groups", "/queues", "/consumers", "/tenants", "/webhooks", "/keys", "/audit")
        for path in ("/", *lists, "/?since=7d", "/search?q=acme", f"/deliveries/{dead.id}"):
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        page.goto("/search?q=acme")
        field, button = page.locator(".filter input").bounding_box(), page.locator(".filter button").bounding_box()
        assert field is not None
        assert button is not None
        assert field["x"] + field["width"] <= button["x"], "the button covers the field"


@pytest.mark.parametrize("width", [1100, 1280])
def test_the_buttons_of_a_table_cover_no_column_on_a_small_laptop(browser: Browser, shop: Shop, width: int) -> None:
    shop.ops.create_plan(Action.REPLAY, Filter(dead=True), limit=3, actor="ada@laptop.example", reason="a sample first")
    with _page(browser, shop, viewport={"width": width, "height": 800}) as page:
        for path in ("/queues", "/plans", "/consumers", "/breakers"):
            page.goto(path)
            assert page.evaluate(_COVERED) <= 1, path
            if path in ("/queues", "/plans"):
                hidden = page.evaluate("(one => one.scrollWidth - one.clientWidth)(document.querySelector('.scroll'))")
                assert hidden <= 0, f"{path} scrolls sideways"


def test_rows_are_selected_on_a_small_phone(browser: Browser, shop: Shop) -> None:
    with _page(browser, shop, viewport={"width": 360, "height": 740}) as page:
        for path in ("/dead", "/deliveries"):
            page.goto(path)
            box = page.locator("tbody .select input").first.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) >= 24, path
        page.goto("/dead")
        page.locator("tbody .select input").first.check()
        page.get_by_role("button", name="Preview replay").last.click()
        expect(page).to_have_url(re.compile("/plans/"))


@pytest.mark.timeout(300)
def test_no_screen_has_an_accessibility_violation(browser: Browser, shop: Shop, tmp_path: Path) -> None:
    dead = shop.ops.deliveries(limit=1)[0].delivery
    run, group = _start_order(tmp_path / "shop.db"), _start_group(tmp_path / "shop.db")
    plan = shop.ops.create_plan(Action.REPLAY, Filter(dead=True), limit=3, actor="ada", reason="a sample first")
    found = {}
    with _page(browser, shop, bypass_csp=True) as page:
        page.goto("/")
        linked = page.locator("nav a, a[href^='/groups/']").evaluate_all(
            "all => all.map(one => one.getAttribute('href'))"
        )
        paths = [*dict.fromkeys(linked), f"/deliveries/{dead.id}", f"/messages/{dead.message_id}"]
        paths += [f"/workflows/{run}", f"/job-groups/{group}", f"/plans/{plan.id}", f"/compare?left={dead.id}"]
        paths += [f"/dead?group={shop.ops.failure_groups()[0].fingerprint}", "/?since=30d", "/search?q=acme"]
        paths += ["/tenants?tenant=", "/queues?state=paused"]
        for number, path in enumerate(paths):
            page.emulate_media(color_scheme="dark" if number % 2 else "light")
            opened = page.goto(path)
            assert opened is not None
            assert opened.ok, path
            found.update({(path, rule): places for rule, places in violations(page).items()})
    assert len(paths) > 15
    assert found == {}
