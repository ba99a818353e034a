"""The built site in a real browser: a few kinds of pages, in light and dark, and as narrow as a phone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser

from tests.support.browser import CHROMIUM, browser, violations

__all__ = ["browser"]

ROOT = Path(__file__).parents[2]
PAGES = (
    "index.md",  # a picture
    "start/tutorial.md",  # long code
    "how-to/frameworks/fastapi.md",
    "coming-from/celery.md",  # tables with code
    "reference/errors.md",  # tables
    "explanation/comparison.md",  # wide tables
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the site was not tested in a browser"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with these pages only, and without the Python reference: building all of it takes too long for a test."""
    folder = tmp_path_factory.mktemp("docs")
    for name in (*PAGES, "explanation/lifecycle.svg", "assets/site.css", "assets/site.js"):
        (folder / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    settings: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings["plugins"] = ["search"]
    settings["nav"] = [{Path(name).stem: name} for name in PAGES]
    del settings["validation"]
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    program = Path(sys.executable).parent / "zensical"
    built = subprocess.run(
        [program, "build", "--clean"], cwd=folder, capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.mark.timeout(300)
def test_no_page_has_an_accessibility_violation_or_is_wider_than_a_phone(browser: Browser, site: Path) -> None:
    found = {}
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(20_000)
    page = context.new_page()
    for number, name in enumerate(PAGES):
        page.emulate_media(color_scheme="dark" if number % 2 else "light")
        page.goto((site / name).with_suffix(".html").as_uri())
        found.update({(name, rule): places for rule, places in violations(page).items()})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    context.close()
    assert found == {}
