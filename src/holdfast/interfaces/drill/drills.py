"""The drills. Each one injects a production failure and checks the result."""

from collections.abc import Awaitable, Callable
from contextlib import closing

from holdfast import Context, Holdfast, Outage, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.interfaces.drill.broker_drills import emit_twice
from holdfast.interfaces.drill.provider import Provider, TokenRejected
from holdfast.interfaces.drill.report import PromiseCheck, check_equal
from holdfast.interfaces.drill.scratch import ScratchStore, running_worker, until
from holdfast.interfaces.drill.workflow_drills import broken_step, duplicate_command
from holdfast.stores.queries.query import DeliverySummary, Filter

Drill = Callable[[ScratchStore], Awaitable[list[PromiseCheck]]]

_BUDGET = 3
_SHORT = RetryPolicy.fixed(0.05, attempts=_BUDGET)


async def stopped_service(store: ScratchStore) -> list[PromiseCheck]:
    """A service stops: work that depends on it is blocked or dead, never lost, and continues when the service is back."""
    with closing(Provider()) as provider:
        app = store.app(probes={"ledger": lambda: provider.alive})

        @app.consumer("order.placed", name="accounting", retry=_SHORT)
        def accounting(ctx: Context, order: dict[str, int]) -> None:
            try:
                provider.make(order["id"], f"accounting:{ctx.message_id}", provider.token)
            except OSError as error:
                raise Outage("ledger") from error

        @app.consumer("order.placed", name="newsletter", retry=_SHORT)
        def newsletter(ctx: Context, order: dict[str, int]) -> None:
            provider.make(order["id"], f"newsletter:{ctx.message_id}", provider.token)

        async with running_worker(app):
            await app.publish("order.placed", {"id": 1}, conn=None)

            async def blocked_and_dead() -> bool:
                states = {one.name: one.blocked_until for one in await app.ops.consumers()}
                return states["accounting"] is not None and (await _only(app, "newsletter")).delivery.dead

            await until("one consumer is blocked and the other's delivery is dead", blocked_and_dead)
            blocked, dead = (await _only(app, "accounting")).delivery, (await _only(app, "newsletter")).delivery
            provider.start()
            await app.ops.replay([dead.id], actor="drill", reason="the service is back")
            await until("both are delivered", lambda: _delivered(app, "accounting", "newsletter"))
        return [
            check_equal(
                "the consumer that named the outage is blocked and its delivery waits", blocked.status, Status.PENDING
            ),
            check_equal("an outage spends no attempt", blocked.attempts, 0),
            check_equal(
                "the other one is dead after its budget", (dead.status, dead.attempts), (Status.FAILED, _BUDGET)
            ),
            check_equal(
                "when the service is back, the first continues automatically and the second after a replay",
                2,
                len(provider.made),
            ),
        ]


async def duplicate_events(store: ScratchStore) -> list[PromiseCheck]:
    """An event is published three times, and with --redis emitted twice on a stream: it is stored once, and the projection is unchanged."""
    app = store.app()
    _totals(app, store)
    async with running_worker(app):
        key = "order:7:placed:v1"
        ids = {(await app.publish("order.placed", {"id": 7, "cents": 500}, conn=None, key=key)).id for _ in range(3)}
        await until("it is projected", lambda: _delivered(app, "totals"))
        after_one = store.database.rows("select order_id, cents from {shop}charges")
        row = (await _only(app, "totals")).delivery
        again = await app.ops.replay([row.id], actor="drill", reason="check that nothing runs twice")
        await app.publish("order.placed", {"id": 7, "cents": 500}, conn=None, key=key)
        stored = await app.ops.messages(type="order.placed")
    projection = store.database.rows("select order_id, cents from {shop}charges")
    emitted = [] if store.redis is None else await emit_twice(store, store.redis)
    return [
        *emitted,
        check_equal("three publishes return one message", len(ids), 1),
        check_equal("one message is stored", len(stored), 1),
        check_equal("a replay of delivered work is skipped", (len(again.done), len(again.skipped)), (0, 1)),
        check_equal("the projection contains it once and does not change", projection, after_one),
        check_equal("the row is correct", projection, [(7, 500)]),
    ]


async def broken_token(store: ScratchStore) -> list[PromiseCheck]:
    """A token is revoked: every retry is logged, no partial effect remains, and a replay with a new token succeeds."""
    with closing(Provider()) as provider:
        provider.start()
        app, token = store.app(), ["revoked"]

        @app.consumer("stack.wanted", name="provision", retry=_SHORT, retry_on=(TokenRejected,))
        def provision(ctx: Context, stack: dict[str, int]) -> None:
            with store.database.transaction() as conn:
                store.database.insert(conn, "charges", order_id=stack["id"], cents=0)
                provider.make(stack["id"], str(ctx.message_id), token[0])
                ctx.sync.complete(conn=conn)

        async with running_worker(app):
            await app.publish("stack.wanted", {"id": 3}, conn=None)

            async def dead() -> bool:
                return (await _only(app, "provision")).delivery.dead

            await until("the budget is spent", dead)
            row = (await _only(app, "provision")).delivery
            partial = store.database.rows("select count(*) from {shop}charges")[0][0], len(provider.made)
            runs = (await app.ops.delivery(row.id)).runs
            token[0] = provider.token
            await app.ops.replay([row.id], actor="drill", reason="new token")
            await until("it is provisioned", lambda: _delivered(app, "provision"))
        complete = store.database.rows("select count(*) from {shop}charges")[0][0], len(provider.made)
    retries = [line for line in store.logged if line.get("consumer") == "provision" and line.get("retryable") is True]
    return [
        check_equal(
            "each attempt has a run record with its error",
            [(run.error_type or "").rpartition(".")[2] for run in runs],
            ["TokenRejected"] * _BUDGET,
        ),
        check_equal("each retry is logged", len(retries), _BUDGET - 1),
        check_equal("no partial effect remains", partial, (0, 0)),
        check_equal("after a replay each effect exists once", complete, (1, 1)),
    ]


async def replayed_dead_letter(store: ScratchStore) -> list[PromiseCheck]:
    """A projector fails on one event: the others are projected, and a replay adds the missing one."""
    app, fixed = store.app(), [False]
    _totals(app, store, lambda order: fixed[0] or order["id"] != 2)
    async with running_worker(app):
        for id in (1, 2, 3):
            await app.publish("order.placed", {"id": id, "cents": 100 * id}, conn=None)

        async def settled() -> bool:
            rows = await app.ops.deliveries(Filter(consumers=("totals",)))
            return sorted(one.delivery.status for one in rows) == [Status.DELIVERED, Status.DELIVERED, Status.FAILED]

        await until("two are projected and one is dead", settled)
        before = store.database.rows("select order_id from {shop}charges order by order_id")
        (dead,) = await app.ops.deliveries(Filter(dead=True))
        fixed[0] = True
        await app.ops.replay([dead.delivery.id], actor="drill", reason="fixed")
        await until("the third is projected", lambda: _delivered(app, "totals"))
        detail = await app.ops.delivery(dead.delivery.id)
    after = store.database.rows("select order_id from {shop}charges order by order_id")
    return [
        check_equal("one failing event does not stop the others", before, [(1,), (3,)]),
        check_equal("after the replay the projection is complete", after, [(1,), (2,), (3,)]),
        check_equal(
            "who replayed it and why is recorded",
            [(e.actor, e.reason) for e in detail.audit][:1],
            [("drill", "fixed")],
        ),
        check_equal("the failed cycle is kept", len(detail.listed.delivery.failure_history), 1),
    ]


DRILLS: dict[str, Drill] = {
    "stopped-service": stopped_service,
    "duplicate-events": duplicate_events,
    "broken-token": broken_token,
    "replayed-dead-letter": replayed_dead_letter,
    "broken-step": broken_step,
    "duplicate-command": duplicate_command,
}


def _totals(app: Holdfast, store: ScratchStore, fine: Callable[[dict[str, int]], bool] = lambda _: True) -> None:
    @app.projector("order.placed", name="totals", retry=RetryPolicy.none())
    def totals(ctx: Context, order: dict[str, int]) -> None:
        with store.database.transaction() as conn:
            store.database.insert(conn, "charges", order_id=order["id"], cents=order["cents"])
            if not fine(order):
                raise RuntimeError("a bug that came with the last deploy")
            ctx.sync.complete(conn=conn)


async def _only(app: Holdfast, consumer: str) -> DeliverySummary:
    (found,) = await app.ops.deliveries(Filter(consumers=(consumer,)))
    return found


async def _delivered(app: Holdfast, *consumers: str) -> bool:
    rows = await app.ops.deliveries(Filter(consumers=consumers))
    return all(one.delivery.status is Status.DELIVERED for one in rows)
