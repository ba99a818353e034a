"""The pytest plugin. Override `holdfast_app` to name your app, and `holdfast_dsn` to test on your own database.

# conftest.py
@pytest.fixture
def holdfast_app():
    return shop.hf

async def test_an_order_is_billed(holdfast):
    await shop.place_order("ada@example.com")
    holdfast.assert_published(OrderPlaced, email="ada@example.com")
    await holdfast.drain()
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.testing.harness import Harness


@pytest.fixture
def holdfast_app() -> "Holdfast":
    """The app under test; every project overrides it."""
    pytest.fail("define a fixture `holdfast_app` that returns your Holdfast, for instance in conftest.py")


@pytest.fixture
def holdfast_dsn(tmp_path: Path) -> str:
    """The database for one test: a new SQLite file, unless overridden. On PostgreSQL a schema is created and dropped.

    Connections that your code opens must lead to the same database: override it, and change their address there too.
    """
    return f"sqlite:///{tmp_path / 'holdfast-test.db'}"


@pytest.fixture
def holdfast(holdfast_app: "Holdfast", holdfast_dsn: str) -> "Iterator[Harness]":
    """The app on a separate store, with assertions, injected failures and a clock that can be advanced."""
    from holdfast.testing.harness import bind_app

    with bind_app(holdfast_app, holdfast_dsn) as harness:
        yield harness


@pytest.fixture
def holdfast_no_wait() -> "Iterator[None]":
    """Retries in this process do not wait. For all tests, request it in an autouse fixture."""
    from holdfast.testing import no_wait

    with no_wait():
        yield
