"""Many calls of a job, and a group of jobs, in one transaction, on every kind of connection."""

from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, InvalidPayload
from tests.produce.callers import EACH, Caller
from tests.produce.conftest import Stored, stored
from tests.produce.place import Place

CALLS: list[Any] = [("ada", 1), {"to": "bob", "n": 2}, ("cyd",)]


@pytest.mark.parametrize("way", EACH)
@pytest.mark.parametrize("commits", [True, False])
def test_all_calls_commit_or_roll_back_with_the_caller(
    hf: Holdfast, caller: Caller, place: Place, commits: bool
) -> None:
    @hf.job()
    def send(to: str, n: int = 0) -> None: ...

    @hf.job()
    def done() -> None: ...

    caller.insert(1)
    using = send.using(conn=caller.conn)
    handles = caller.runner.run(using.enqueue_many(CALLS)) if caller.awaits else using.sync.enqueue_many(CALLS)
    assert len({handle.id for handle in handles}) == 3
    group = hf.group([send.call("dan"), send.call("eve")]).then(done).using(conn=caller.conn)
    handle = caller.runner.run(group.enqueue()) if caller.awaits else group.sync.enqueue()
    if commits:
        caller.commit()
        found = stored(place)
        assert found.orders == [1]
        assert sorted(found.messages.values()) == [["done"], *[["send"]] * 5]
        assert {one.id for one in handles} <= found.messages.keys()
        assert hf.group_handle(handle.id).sync.progress().left == 3
    else:
        caller.rollback()
        assert stored(place) == Stored([], {})


@pytest.mark.parametrize("way", ["sqlite3", "psycopg"])
def test_the_handles_have_the_order_of_the_calls(hf: Holdfast, place: Place, way: str) -> None:
    @hf.job(queue="mail", priority=0)
    def send(to: str, n: int = 0) -> None: ...

    @hf.command(key="pay:{order}:v1")
    def pay(order: int) -> None: ...

    handles = send.sync.enqueue_many([("x", n) for n in range(250)])
    rows = dict(place.rows("select id, payload from {hf}message"))
    order = [str(rows[handle.id if handle.id in rows else str(handle.id)]) for handle in handles]
    assert ["99" in text for text in order].index(True) == 99
    assert place.rows("select distinct queue, priority from {hf}delivery") == [("mail", 0)]
    first, again, other = pay.sync.enqueue_many([(1,), (1,), (2,)])
    assert (first.id == again.id, first.created, again.created, other.created) == (True, True, False, True)
    assert pay.sync.enqueue_many([]) == []


@pytest.mark.parametrize("way", ["sqlite3"])
def test_wrong_calls_are_refused_with_their_index_and_nothing_is_stored(hf: Holdfast, place: Place, way: str) -> None:
    @hf.job()
    def send(to: str, n: int = 0) -> None: ...

    wrong: Any = send.sync.enqueue_many
    with pytest.raises(TypeError, match="missing a required argument") as missing:
        wrong([("ada",), {"two": "bob"}])
    assert "call 1 of send.enqueue_many" in missing.value.__notes__[0]
    with pytest.raises(InvalidPayload):
        wrong([("ada", "many")])
    with pytest.raises(
        ConfigurationError, match=r"call 1 of send\.enqueue_many is of type str; give a tuple or a dict"
    ):
        wrong([("ada",), "bob"])
    unusable: list[Any] = ["ada", ("ada", 1), {"to": "ada"}, iter([])]
    for calls in unusable:
        with pytest.raises(ConfigurationError, match="takes a list of calls"):
            wrong(calls)
    with pytest.raises(ConfigurationError, match="would store one call under unique 'u'"):
        send.using(unique="u").sync.enqueue_many([("ada",)])
    with pytest.raises(ConfigurationError, match="would store one call under key 'k'"):
        send.using(key="k").sync.enqueue_many([("ada",)])
    assert stored(place) == Stored([], {})
