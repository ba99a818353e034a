"""Chromium for the tests that need a real browser."""

import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module. Its event loop occupies the thread, so no other test may run while it is open."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS.split())
        yield opened
        opened.close()


def violations(page: Page) -> dict[str, list[str]]:
    """What axe finds on the open page, with every rule that it has switched on by default: the rule and the first places."""
    found = Axe().run(page).response["violations"]
    return {one["id"]: [node["html"][:160] for node in one["nodes"][:3]] for one in found}
