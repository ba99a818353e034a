"""The part of a drill that uses a real broker: a stream in Redis, removed at the end."""

import json
import secrets

from holdfast import Context
from holdfast.interfaces.drill.report import PromiseCheck, check_equal
from holdfast.interfaces.drill.scratch import ScratchStore, running_worker, until


async def emit_twice(store: ScratchStore, url: str) -> list[PromiseCheck]:
    """Emits an event twice with the same dedupe key: one event is stored, and one effect of the projection remains."""
    from redis.asyncio import Redis

    from holdfast.brokers import redis

    stream = f"holdfast-drill-{secrets.token_hex(4)}"
    app, calls = store.app(), list[int]()
    app.ingest(redis.stream(stream, group="drill", url=url), as_="drill.paid", key="dedupeKey", name="drill-in")

    @app.projector("drill.paid", name="paid")
    def paid(ctx: Context, order: dict[str, int]) -> None:
        calls.append(order["id"])
        with store.database.transaction() as conn:
            store.database.insert(conn, "charges", order_id=order["id"], cents=order["cents"])
            ctx.sync.complete(conn=conn)

    async with Redis.from_url(url) as client:
        try:
            async with running_worker(app):
                # The last one has another key: when it is projected, the duplicate was read.
                for id in (8, 8, 9):
                    body = json.dumps({"id": id, "cents": 100 * id, "dedupeKey": f"order:{id}:paid:v1"})
                    await client.xadd(stream, {"body": body})

                async def projected() -> bool:
                    return 9 in calls and (await client.xpending(stream, "drill"))["pending"] == 0

                await until("the last event is projected and every record is acknowledged", projected)
                stored = await app.ops.messages(type="drill.paid")
        finally:
            await client.delete(stream)
    rows = store.database.rows("select order_id, cents from {shop}charges where order_id > 7 order by order_id")
    return [
        check_equal(
            "a dedupe key emitted twice on Redis is one stored event",
            sorted(str(one.key) for one in stored),
            ["order:8:paid:v1", "order:9:paid:v1"],
        ),
        check_equal("its projection ran once", sorted(calls), [8, 9]),
        check_equal("its row exists once", rows, [(8, 800), (9, 900)]),
    ]
