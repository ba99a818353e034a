"""`keep=`: how long the delivered rows of a queue or handler stay; workers and operators prune by it."""

from datetime import timedelta

import pytest

from holdfast import Holdfast, Queue, Router
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import MAX_DURATION
from holdfast.engine.maintenance.pruner import Pruner
from holdfast.stores.messages.registry import consumers
from tests.support.apps import MakeApp, dsn, make_app, postgres18_dsn, sqlite_dsn
from tests.support.builders import age
from tests.support.worker import all_of, drain

__all__ = ["dsn", "make_app", "postgres18_dsn", "sqlite_dsn"]


def declare(hf: Holdfast, **options: dict[str, str]) -> None:
    router = Router()
    for name, given in {"own": {}, "queued": {}, "none": {}, **options}.items():
        router.job(name=name, queue="mail", **given)(lambda: None)  # type: ignore[arg-type]
    hf.include(router)
    hf.job(name="plain")(lambda: None)


async def test_workers_and_operators_prune_by_the_retention_of_each_handler(make_app: MakeApp) -> None:
    worker, hf = make_app(), make_app(keep=None, queues=[Queue("mail", keep="1h")])
    declare(worker)
    declare(hf, own={"keep": "2h"}, none={"keep": "0"})
    for name in ("own", "queued", "none", "plain"):
        await hf.ops.enqueue(name, {}, actor="ada", force=True)
    # An app without retentions runs the jobs: a worker of the other one would prune at once.
    await drain(worker)
    async with hf.lifespan():
        pass
    kept = {one.name: one.keep for one in await hf.store.run(consumers())}
    assert kept == {"own": 7200.0, "queued": 3600.0, "none": 0.0, "plain": None}
    assert [one.keep for one in await hf.ops.consumers() if one.name == "own"] == [timedelta(hours=2)]
    age(hf.store, timedelta(seconds=10), "delivery", "message")
    assert (await hf.ops.prunable(timedelta(days=1))).delivered == 1
    assert (await hf.ops.prune(timedelta(days=1), actor="ada")).delivered == 1
    assert {one.consumer for one in await all_of(hf)} == {"own", "queued", "plain"}
    age(hf.store, timedelta(hours=3), "delivery", "message")
    # A worker of an app that keeps everything removes only the rows of handlers that say so.
    await Pruner(hf.store, MAX_DURATION).perform("w-1")
    assert {one.consumer for one in await all_of(hf)} == {"plain"}


def test_wrong_retentions_are_refused() -> None:
    hf = Holdfast("sqlite:///unused.db")
    for keep, text in (("soon", "cannot be read"), (-1, "negative"), (True, "bool")):
        with pytest.raises((ConfigurationError, ValueError), match=text):
            hf.job(name="j", keep=keep)(lambda: None)
    with pytest.raises((ConfigurationError, ValueError), match="cannot be read"):
        Queue("mail", keep="soon")
    with pytest.raises(ConfigurationError, match="no option 'keep'"):
        hf.workflow("order").step(keep="1h")(lambda: None)
    with pytest.raises(ConfigurationError, match="keep='1h'"):
        hf.job(retention="1h")  # type: ignore[call-arg]
