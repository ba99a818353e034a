"""Each kind of stored value: encrypted in the database, and as before for the app."""

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Context, Holdfast, KeyConflict, Limit, Step, event
from tests.encryption.conftest import Dump
from tests.engine.ways import BLOCKING
from tests.relay.broker import Broker
from tests.support.apps import MakeApp
from tests.support.worker import drain, query

SECRET = "plaintext-4711"


@event("parcel.sent", version=2)
@dataclass
class ParcelSent:
    address: str
    tenant: str = "blue"


async def test_messages_and_results_of_jobs_and_events(hf: Holdfast, dump: Dump) -> None:
    seen: list[object] = []

    @hf.job(result="1h")
    async def greet(name: str) -> dict[str, str]:
        seen.append(name)
        return {"greeting": f"hello {name}"}

    @hf.consumer(ParcelSent, limit=Limit(1, by="tenant"))
    async def label(sent: ParcelSent) -> None:
        seen.append(sent.address)

    @hf.consumer("note.*", batch=10, within="10ms")
    async def notes(found: list[Any]) -> None:
        seen.extend(one["text"] for one in found)

    handle = await greet.enqueue(SECRET)
    await greet.using(unique="one").enqueue(SECRET)
    await greet.enqueue_many([(SECRET,), (SECRET,)])
    await hf.publish(ParcelSent(SECRET), conn=None)
    await hf.publish_many([("note.a", {"text": SECRET})] * 3, conn=None)
    await hf.publish_many([("note.a", {"text": SECRET})] * 1100, conn=None)
    await hf.publish("note.large", {"text": SECRET * 10_000}, conn=None)
    await drain(hf)
    assert seen.count(SECRET) == 4 + 1 + 1103
    assert SECRET * 10_000 in seen
    assert await handle.result(timeout=0) == {"greeting": f"hello {SECRET}"}
    stored = await dump(hf)
    assert SECRET not in stored
    assert "blue" in stored, "a flow key is readable"


async def test_a_repeated_key_compares_the_values_and_not_their_encryption(hf: Holdfast) -> None:
    first = await hf.publish("note.a", {"text": SECRET}, conn=None, key="k")
    assert (await hf.publish("note.a", {"text": SECRET}, conn=None, key="k")).id == first.id
    with pytest.raises(KeyConflict):
        await hf.publish("note.a", {"text": "other"}, conn=None, key="k")


async def test_groups(hf: Holdfast, dump: Dump) -> None:
    seen: list[object] = []

    @hf.job(result="1h")
    async def member(n: int) -> str:
        return f"{SECRET} {n}"

    @hf.job(result="1h")
    async def collect(results: list[str]) -> int:
        seen.extend(results)
        return len(results)

    handle = await hf.group([member.call(1), member.call(2)]).then(collect).enqueue()
    await drain(hf)
    assert seen == [f"{SECRET} 1", f"{SECRET} 2"]
    assert await handle.result(timeout=0) == 2
    assert [one.result for one in await handle.members()] == seen
    assert SECRET not in await dump(hf)


async def test_a_workflow_with_its_input_results_memos_signals_items_child_and_fork(hf: Holdfast, dump: Dump) -> None:
    flow = hf.workflow("ship")
    inner = hf.workflow("inner")
    calls: list[str] = []

    @inner.step
    async def echo(text: str) -> str:
        return text

    @flow.step
    async def pack(ctx: Step, order: str) -> str:
        found = await ctx.step("session", lambda: f"{order} memo")
        calls.append(found)
        return f"{await ctx.wait('approved', str)} {await ctx.child(inner, text=order)}"

    @flow.step(mapped=True)
    async def each(item: str) -> str:
        return f"{item}!"

    @flow.step(after=[pack])
    async def send(ctx: Step, pack: str) -> list[str]:
        return [pack, *await ctx.map(each, [SECRET, SECRET])]

    run = await flow.start(SECRET)
    await run.signal("approved", SECRET)
    await drain(hf)
    expected = [f"{SECRET} {SECRET}", f"{SECRET}!", f"{SECRET}!"]
    assert await run.result(timeout=0) == expected
    fork = await run.fork(from_="send")
    await drain(hf)
    assert await fork.result(timeout=0) == expected
    assert calls == [f"{SECRET} memo"] * len(calls)
    assert SECRET not in await dump(hf)
    found = await hf.ops.workflow_run(run.id)
    assert SECRET in found.payload
    assert any(SECRET in (one.payload or "") for one in found.signals)


async def test_a_relay_sends_what_was_published(hf: Holdfast, dump: Dump) -> None:
    broker = Broker()
    hf.relay("note.*", to=broker, name="out")
    await hf.publish("note.a", {"n": 7, "text": SECRET}, conn=None)
    await drain(hf)
    assert broker.numbers == [7]
    assert SECRET.encode() in broker.sent[0].body
    assert SECRET not in await dump(hf)


async def test_a_schedule_put_again_with_the_same_arguments_does_not_change(hf: Holdfast, dump: Dump) -> None:
    @hf.job()
    async def report(name: str) -> None: ...

    for _ in range(2):
        await hf.schedules.put("daily", cron="0 7 * * *", job=report, args={"name": SECRET}, conn=None)
    assert (await hf.schedules.list())[0].args == {"name": SECRET}
    ((revision, audited),) = await query(hf, "select revision, (select count(*) from {hf}audit) from {hf}schedule")
    assert (revision, audited) == (0, 1)
    await hf.schedules.put("daily", cron="0 7 * * *", job=report, args={"name": SECRET + "2"}, conn=None)
    ((revision,),) = await query(hf, "select revision from {hf}schedule")
    assert revision == 1
    assert SECRET not in await dump(hf)


async def test_rows_from_before_the_cipher_are_read_as_they_are(hf: Holdfast, make_app: MakeApp) -> None:
    seen: list[str] = []
    plain = make_app()
    await plain.publish("note.a", {"text": "plain"}, conn=None)
    await plain.publish("note.a", {"text": "plain"}, conn=None, key="k")

    @hf.consumer("note.a")
    async def read(note: dict[str, str]) -> None:
        seen.append(note["text"])

    await hf.publish("note.a", {"text": "plain"}, conn=None, key="k")
    await hf.publish("note.a", {"text": SECRET}, conn=None)
    await drain(hf)
    assert sorted(seen) == ["plain", "plain", SECRET]


async def test_a_call_in_the_transaction_of_the_caller(hf: Holdfast, dsn: str, dump: Dump) -> None:
    connect = next(iter(BLOCKING["sqlite" if dsn.startswith("sqlite") else "postgres18"].values()))
    seen: list[str] = []

    @hf.job(result="1h")
    def greet(ctx: Context, name: str) -> None:
        seen.append(name)
        with connect(dsn) as (conn, _):
            ctx.sync.complete(conn=conn, result=f"hello {name}")

    await drain(hf)
    with connect(dsn) as (conn, _):
        handle = greet.using(conn=conn).sync.enqueue(SECRET)
    await drain(hf)
    assert seen == [SECRET]
    assert await handle.result(timeout=0) == f"hello {SECRET}"
    assert SECRET not in await dump(hf)
