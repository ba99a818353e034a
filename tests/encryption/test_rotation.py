"""Stored values are encrypted again with the current key, while the app runs, and a rotation can be stopped and repeated."""

import re
from typing import Any

import orjson
import pytest

from holdfast import ConfigurationError, Holdfast, Step
from holdfast.cipher import AesGcm
from holdfast.ops.encryption import KeyUse
from holdfast.stores.encryption import rotation
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.encryption.rotation import TABLES, rotate_batch
from holdfast.stores.integrations.webhook import endpoints
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.sqlite.dialect import SqliteDialect
from tests.encryption.conftest import NEW, OLD, Dump
from tests.encryption.test_http import Shop, client
from tests.support.apps import MakeApp
from tests.support.worker import drain
from tests.webhooks.receiver import LOOPBACK

SECRET = "plaintext-4711"
KINDS = {"messages", "results", "steps", "signals", "schedules", "responses", "endpoints"}


class Vault:
    """An app with a value of every kind. The endpoint has a previous secret, and a step the payload of a signal."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf, self.shop = hf, Shop()
        flow = hf.workflow("ship")

        @hf.job(result="1h")
        async def greet(name: str) -> str:
            return f"hello {name}"

        @flow.step
        async def pack(ctx: Step, order: str) -> str:
            return f"{await ctx.step('session', lambda: order)} {await ctx.wait('approved', str)}"

        @flow.step(mapped=True)
        async def each(item: str) -> str:
            return f"{item}!"

        @flow.step(after=[pack])
        async def send(ctx: Step, pack: str) -> list[str]:
            return [pack, *await ctx.map(each, [SECRET, SECRET])]

        self.greet, self.flow = greet, flow

    async def fill(self) -> None:
        self.job, self.run = await self.greet.enqueue(SECRET), await self.flow.start(SECRET)
        await self.run.signal("approved", SECRET)
        await drain(self.hf)
        await self.hf.schedules.put("daily", cron="0 7 * * *", job=self.greet, args={"name": SECRET}, conn=None)
        added = await self.hf.webhooks.add(
            "http://127.0.0.1:9/", events=["note.*"], conn=None, headers={"X-Token": SECRET}
        )
        rotated = await self.hf.ops.rotate_webhook_secret(added.id, actor="ada")
        self.secrets = (rotated.secret, added.secret)
        await self.request()

    async def request(self) -> Any:
        async with client(self.hf, self.shop) as http:
            return await http.post("/pay", headers={"Idempotency-Key": "order-1"}, json={"n": 1})

    async def check(self, before: "Vault") -> None:
        """Reads every value of another app's store."""
        expected = [f"{SECRET} {SECRET}", f"{SECRET}!", f"{SECRET}!"]
        assert await self.greet.handle(before.job.id).result(timeout=0) == f"hello {SECRET}"
        assert await self.flow.run(before.run.id).result(timeout=0) == expected
        found = await self.hf.ops.workflow_run(before.run.id)
        assert SECRET in found.payload
        assert [SECRET in str(one.payload) for one in found.signals] == [True]
        assert (await self.hf.schedules.list())[0].args == {"name": SECRET}
        replayed = await self.request()
        assert (replayed.text, replayed.headers["x-token"], self.shop.runs) == (SECRET, SECRET, 0)
        (endpoint,) = await self.hf.store.run(endpoints())
        assert (dict(endpoint.headers), endpoint.secrets) == ({"x-token": SECRET}, before.secrets)


async def keys_of(hf: Holdfast) -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for one in await hf.ops.encryption_keys():
        found.setdefault(one.kind, set()).add(one.key)
    return found


async def test_every_kind_of_value_is_readable_with_the_new_key_alone(make_app: MakeApp, dump: Dump) -> None:
    before = Vault(make_app(cipher=AesGcm({"old": OLD}), webhooks=LOOPBACK))
    await before.fill()
    assert await keys_of(make_app()) == {kind: {"old"} for kind in KINDS}
    both = make_app(cipher=AesGcm({"old": OLD, "new": NEW}, current="new"), webhooks=LOOPBACK)
    done = await both.ops.rotate_encryption(actor="ada")
    assert (done.key, done.unreadable) == ("new", ())
    assert sum(one.values for one in await both.ops.encryption_keys()) == done.rotated
    assert await keys_of(both) == {kind: {"new"} for kind in KINDS}
    await Vault(make_app(cipher=AesGcm({"new": NEW}), webhooks=LOOPBACK)).check(before)
    assert SECRET not in await dump(both)
    assert (await both.ops.rotate_encryption(actor="ada")).rotated == 0, "nothing is left"
    entries = await both.ops.audit(action="rotate_encryption")
    assert [one.detail for one in reversed(entries)][:2] == [
        {"key": "new", "plain": False},
        {"key": "new", "rotated": done.rotated, "unreadable": 0},
    ]


async def test_values_from_before_the_cipher_are_encrypted_on_request(make_app: MakeApp, dump: Dump) -> None:
    before = Vault(make_app(webhooks=LOOPBACK))
    await before.fill()
    assert await keys_of(before.hf) == {kind: {None} for kind in KINDS}
    after = Vault(make_app(cipher=AesGcm({"new": NEW}), webhooks=LOOPBACK))
    assert (await after.hf.ops.rotate_encryption(actor="ada")).rotated == 0
    assert (await after.hf.ops.rotate_encryption(actor="ada", plain=True)).rotated > 0
    assert await keys_of(after.hf) == {kind: {"new"} for kind in KINDS}
    await after.check(before)
    assert SECRET not in await dump(after.hf)


async def test_a_rotation_that_was_stopped_is_completed_by_the_next_one(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "_BATCH", 2)
    hf = make_app(cipher=AesGcm({"old": OLD}))
    await hf.publish_many([("note.a", {"n": n}) for n in range(5)], conn=None)
    both = make_app(cipher=AesGcm({"old": OLD, "new": NEW}, current="new"))

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await both.ops.rotate_encryption(actor="ada", progress=stop)
    assert await both.ops.encryption_keys() == [KeyUse("messages", "new", 2), KeyUse("messages", "old", 3)]
    assert (await both.ops.rotate_encryption(actor="ada")).rotated == 3
    assert sorted(one.data["n"] for one in await both.ops.messages()) == [0, 1, 2, 3, 4]


async def test_values_that_the_app_cannot_decrypt_stay_as_they_are(make_app: MakeApp, hf: Holdfast) -> None:
    await hf.publish("note.a", {"n": 1}, conn=None)
    with pytest.raises(ConfigurationError, match="no cipher to encrypt with"):
        await make_app().ops.rotate_encryption(actor="ada")
    for keys in ({"new": NEW}, {"old": NEW, "new": NEW}):
        other = make_app(cipher=AesGcm(keys, current="new"))
        done = await other.ops.rotate_encryption(actor="ada")
        assert (done.rotated, done.unreadable) == (0, (KeyUse("messages", "old", 1),))
    assert (await hf.ops.messages())[0].data == {"n": 1}


async def test_a_value_that_changed_since_it_was_read_is_not_replaced(make_app: MakeApp, hf: Holdfast) -> None:
    message = await hf.publish("note.a", {"n": 1}, conn=None)
    cipher = Encryption(AesGcm({"old": OLD, "new": NEW}, current="new"))

    @operation
    def late() -> Steps[int]:
        """A rotation that reads, and writes after another process has replaced the value."""
        steps = rotate_batch(TABLES[0], TABLES[0].start, cipher).start()
        change = steps.send((yield next(steps)))
        other = orjson.dumps({"n": 2}).decode()
        yield Query("reencrypt_message", {**change.values, "new": other})
        assert (yield change) == []
        return 1

    assert await make_app().store.run(late()) == 1
    assert (await hf.ops.message(message.id)).message.data == {"n": 2}


@pytest.mark.parametrize("dialect", [SqliteDialect(), PostgresDialect()], ids=lambda one: one.name)
def test_every_statement_compares_with_the_value_that_was_read(dialect: SqliteDialect | PostgresDialect) -> None:
    for statement in (name for table in TABLES for name in table.values):
        steps = dialect.statements._statements[statement].steps
        text = " ".join(line for step in steps for line in step.statements)
        set_column = re.search(r"set (\w+) = ", text)
        assert set_column is not None
        assert re.search(rf"where .*\b{set_column[1]} = \S*old", text, re.DOTALL), statement
