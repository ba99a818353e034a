"""Keys that are rotated or missing, and rows that were changed: nothing is lost, and the error says what to do."""

from datetime import timedelta
from typing import Any

import orjson
import pytest

from holdfast import DecryptionFailed, EncryptionKeyMissing, Holdfast, JobFailed, Limit, RebuildStopped
from holdfast.cipher import AesGcm
from holdfast.core.delivery import Status
from holdfast.engine.claims.flow_adoption import FlowAdoption
from holdfast.stores.deliveries.claim import lanes
from tests.encryption.conftest import NEW, OLD, Dump
from tests.relay.broker import Broker
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, logged, only, pass_time, query, run_records

SHORT = timedelta(seconds=1)


def declare(hf: Holdfast, seen: list[str]) -> Any:
    @hf.job(result="1h")
    async def greet(name: str) -> str:
        seen.append(name)
        return f"hello {name}"

    return greet


async def test_a_rotated_key_encrypts_and_the_old_one_still_decrypts(make_app: MakeApp, dump: Dump) -> None:
    seen: list[str] = []
    before = declare(make_app(cipher=AesGcm({"old": OLD})), seen)
    first = await before.using(key="k").enqueue("ada")
    after = make_app(cipher=AesGcm({"old": OLD, "new": NEW}, current="new"))
    greet = declare(after, seen)
    assert (await greet.using(key="k").enqueue("ada")).id == first.id
    second = await greet.enqueue("bob")
    await drain(after)
    assert sorted(seen) == ["ada", "bob"]
    assert [await greet.handle(one.id).result(timeout=0) for one in (first, second)] == ["hello ada", "hello bob"]
    with pytest.raises(EncryptionKeyMissing, match="key 'new'"):
        await before.handle(second.id).result(timeout=0)
    stored = await dump(after)
    assert "'old'" in stored.replace('"', "'")
    assert "'new'" in stored.replace('"', "'")


@pytest.mark.parametrize("cipher", [None, AesGcm({"new": NEW})], ids=["no cipher", "another key"])
async def test_a_delivery_waits_for_a_worker_with_its_key(
    make_app: MakeApp, log: Log, cipher: AesGcm | None, hf: Holdfast
) -> None:
    seen: list[str] = []
    handle = await declare(hf, seen).enqueue("ada")
    other = make_app(cipher=cipher)
    declare(other, [])
    await drain(other, idle_limit=SHORT)
    row = await only(other)
    assert (row.status, row.attempts) == (Status.PENDING, 0)
    assert row.error_type == "holdfast.EncryptionKeyMissing"
    assert "key 'old'" in str(row.last_error)
    assert "Holdfast(cipher=" in str(row.last_error)
    assert await run_records(other) == [], "not one record for each look"
    (line,) = logged(log, "delivery snoozed")
    assert line["log_level"] == "warning"
    await hf.publish("note.a", {"n": 1}, conn=None, key="again")
    with pytest.raises(EncryptionKeyMissing):
        # It cannot compare the payloads.
        await other.publish("note.a", {"n": 1}, conn=None, key="again")
    await pass_time(hf, timedelta(minutes=1), "delivery")
    await drain(hf)
    assert seen == ["ada"]
    assert await handle.result(timeout=0) == "hello ada"


@pytest.mark.parametrize("how", ["changed", "copied"])
async def test_a_changed_or_copied_payload_is_a_dead_letter(hf: Holdfast, how: str) -> None:
    seen: list[str] = []
    greet = declare(hf, seen)
    first, second = await greet.enqueue("ada"), await greet.enqueue("bob")
    rows = dict(await query(hf, "select id, payload from {hf}message"))
    texts = {str(id): value if isinstance(value, dict) else orjson.loads(value) for id, value in rows.items()}
    text = texts[str(first.id)]
    if how == "changed":
        text["$encrypted"]["data"] = text["$encrypted"]["data"][:-6] + "AAAAAA"
    await query(hf, f"update {{hf}}message set payload = '{orjson.dumps(text).decode()}' where id = '{second.id}'")
    await drain(hf)
    assert seen == ["ada"]
    with pytest.raises(JobFailed, match=f"message {second.id} cannot be decrypted with key 'old'"):
        await second.result(timeout=0)
    ((attempts,),) = await query(hf, f"select attempts from {{hf}}delivery where message_id = '{second.id}'")
    assert attempts == 1


async def test_a_changed_result_is_refused(hf: Holdfast) -> None:
    handle = await declare(hf, []).enqueue("ada")
    await drain(hf)
    await query(hf, 'update {hf}result set result = \'{"$encrypted": {"key": "old", "data": "AAAA"}}\'')
    with pytest.raises(DecryptionFailed, match=r"result .* cannot be decrypted"):
        await handle.result(timeout=0)


async def test_a_worker_without_the_key_gives_no_flow_key(make_app: MakeApp, hf: Holdfast) -> None:
    def consume(app: Holdfast, seen: list[int]) -> None:
        @app.consumer("note.a", limit=Limit(1, by="n"))
        async def read(note: dict[str, int]) -> None:
            seen.append(note["n"])

    seen: list[int] = []
    other = make_app()
    consume(other, [])
    await drain(other)
    await hf.publish("note.a", {"n": 7}, conn=None)
    consume(hf, seen)
    assert await query(hf, "update {hf}delivery set flow_key = null returning 1") == [(1,)]
    lane = (await other.store.run(lanes(["read"], 0)))[0]
    assert not await FlowAdoption(other.store, other.handlers, suspects=False).adopt(lane)
    assert await query(hf, "select flow_key from {hf}delivery") == [(None,)]
    await drain(hf)
    assert seen == [7]


async def test_a_relay_leaves_events_that_it_cannot_read_to_one_that_can(make_app: MakeApp, hf: Holdfast) -> None:
    broker, other = Broker(), make_app()
    other.relay("note.*", to=broker, name="out")
    await drain(other)
    await hf.publish("note.a", {"n": 7}, conn=None)
    await other.publish("note.a", {"n": 8}, conn=None)
    await drain(other, idle_limit=SHORT)
    assert broker.numbers == [8]
    row = await only(other)
    assert (row.status, row.attempts) == (Status.PENDING, 0)
    hf.relay("note.*", to=broker, name="out")
    await pass_time(hf, timedelta(minutes=1), "delivery")
    await drain(hf)
    assert broker.numbers == [8, 7]


async def test_a_rebuild_stops_at_an_event_that_it_cannot_read(make_app: MakeApp, hf: Holdfast) -> None:
    other = make_app()

    @other.projector("note.*", reset=lambda conn: None)
    async def project(note: dict[str, int]) -> None: ...

    await hf.publish("note.a", {"n": 7}, conn=None)
    with pytest.raises(RebuildStopped, match="EncryptionKeyMissing"):
        await other.projectors.rebuild("project", actor="ada")
