"""An app that may call loopback, on SQLite and on PostgreSQL, and a receiver that says yes."""

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.support.apps import MakeApp, dsn, log, make_app, postgres18_dsn, sqlite_dsn
from tests.webhooks.receiver import LOOPBACK, Receiver, answer, receiving

__all__ = ["dsn", "log", "make_app", "postgres18_dsn", "sqlite_dsn"]


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    return make_app(webhooks=LOOPBACK)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving(answer(200, b"thanks")) as opened:
        yield opened
