"""Batch handlers with an effect in the same database, elsewhere, and with an item that ends the process; a debounced one."""

import asyncio
import os
from typing import Any

from holdfast import BatchContext, BatchError, Context, Holdfast, RetryPolicy
from tests.engine.programs import crash, lab, shop

SIZE = 20
BUDGET = 3


def build(dsn: str) -> Holdfast:
    """The handlers on one database."""
    hf = Holdfast(dsn)
    often = RetryPolicy.fixed(0.05, attempts=60)

    @hf.consumer("stored", name="store", batch=SIZE, within="200ms", retry=often)
    def store(ctx: BatchContext, events: list[dict[str, Any]]) -> None:
        crash.point("effect.started")
        with shop.transaction(dsn) as db:
            for body, item in zip(events, ctx.items, strict=True):
                values = (body["n"], str(item.message_id), item.attempt)
                db.execute(shop.spelled(dsn, "insert into effect (n, message_id, attempt) values (?, ?, ?)"), values)
            crash.point("effect.uncommitted")
            ctx.sync.complete(conn=db)
            crash.point("effect.completed")
        crash.point("effect.committed")

    @hf.consumer("sent", name="send", batch=SIZE, within="200ms", retry=often)
    async def send(ctx: BatchContext, events: list[dict[str, Any]]) -> None:
        for body in events:
            lab.note(f"sent {body['n']}.")
        crash.point("sink.written")
        failed = {n: ConnectionError("again") for n, body in enumerate(events) if body["n"] % 7 == 0}
        if first := {n: error for n, error in failed.items() if ctx.items[n].attempt == 1}:
            raise BatchError(first)

    @hf.consumer("mixed", batch=SIZE, within="200ms", retry=RetryPolicy.fixed(0.05, attempts=BUDGET))
    async def mixed(events: list[dict[str, Any]]) -> None:
        for body in events:
            lab.note(f"mixed {body['n']} of {len(events)}.")
        if any(body.get("kill") for body in events):
            os._exit(3)

    @hf.consumer("edited", debounce="300ms", max_wait="2s", by="key", retry=often)
    async def edited(ctx: Context, body: dict[str, Any]) -> None:
        lab.note(f"start {body['key']} {body['n']}")
        crash.point("effect.started")
        await asyncio.sleep(0.01)
        lab.note(f"end {body['key']} {body['n']}")
        crash.point("sink.written")

    return hf


if "HOLDFAST_TEST_PLACE" in os.environ:
    crash.install()
    hf = build(os.environ["HOLDFAST_DSN"])
