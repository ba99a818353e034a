"""The encrypted columns, by the statements that write and return them.

A place names the row of a value: its kind and its key. It is authenticated with the value, so a value that was copied to
another row is refused. `tests/encryption/test_columns.py` compares these tables with the statements of both dialects.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.stores.operation import Query, Row

Place = tuple[str, ...]


class WrittenColumn(NamedTuple):
    """A value of a statement, or a column of one of its batches. `key` names the parameters that identify its row.

    A row of a step without an occurrence has the occurrence 0.
    """

    name: str
    kind: str
    key: tuple[str, ...]
    batch: str | None = None

    def place(self, values: Mapping[str, Any]) -> Place:
        return (self.kind, *(str(values.get(name, 0) if name == "occurrence" else values[name]) for name in self.key))


class ReturnedColumn(NamedTuple):
    """A column of a statement's rows, and the place of its value."""

    position: int
    place: Callable[[Query, Row], Place]


def _written(name: str, kind: str, *key: str, batch: str | None = None) -> tuple[WrittenColumn, ...]:
    return (WrittenColumn(name, kind, key, batch),)


_MESSAGES = _written("payload", "message", "id", batch="messages")
_STEP = ("run_id", "step", "occurrence")
_RESPONSE = (
    WrittenColumn("response_headers", "response headers", ("scope", "key")),
    WrittenColumn("response_body", "response body", ("scope", "key")),
)
_SECRET = _written("secret", "endpoint", "id")

WRITTEN: Mapping[str, tuple[WrittenColumn, ...]] = {
    "publish": _MESSAGES,
    "publish_alike": _MESSAGES,
    "publish_keyed": _MESSAGES,
    "publish_flow": _MESSAGES,
    "publish_one": _written("payload", "message", "id"),
    "publish_unique": _written("payload", "message", "message_id"),
    "start_runs": _MESSAGES,
    "keep_results": _written("result", "result", "delivery_id", batch="results"),
    "advance": _written("result", "step", *_STEP, batch="steps"),
    "store_result": _written("result", "step", *_STEP),
    "complete_step": _written("result", "step", *_STEP),
    "memo": _written("result", "step", *_STEP),
    "copy_results": _written("result", "step", *_STEP, batch="steps"),
    "store_items": _written("item", "item", *_STEP, batch="items"),
    "store_signal": _written("payload", "signal", "run_id"),
    "finish_request": _RESPONSE,
    "complete_request": _RESPONSE,
    "add_endpoint": (*_SECRET, WrittenColumn("headers", "endpoint headers", ("id",))),
    "rotate_secret": _SECRET,
    "put_schedule": _written("args", "schedule", "name"),
}
STREAMED: Mapping[str, tuple[int, int]] = {"load_messages": (3, 0)}
"""Statements whose rows are streamed: the index of the payload and of the id of its message."""


def _message(payload: int, id: int = 0) -> tuple[ReturnedColumn, ...]:
    return (ReturnedColumn(payload, lambda _, row: ("message", str(row[id]))),)


def _given(position: int, kind: str, name: str) -> tuple[ReturnedColumn, ...]:
    """A column whose row is identified by a parameter of the statement."""
    return (ReturnedColumn(position, lambda query, _: (kind, str(query.values[name]))),)


def _result(position: int, delivery: int) -> tuple[ReturnedColumn, ...]:
    return (ReturnedColumn(position, lambda _, row: ("result", str(row[delivery]))),)


def step_place(run_id: object, name: object, occurrence: object = 0, outcome: object = None) -> Place:
    """The place of the result of a step."""
    # `resolve_wait` copies the payload of a signal to the row of the wait, in the database.
    if outcome == "signal":
        return "signal", str(run_id)
    return "step", str(run_id), str(name), str(occurrence)


def _of_run(index: int, name: int, occurrence: int | None = None, outcome: int | None = None) -> ReturnedColumn:
    """The result of a step of the run that the statement names."""
    return ReturnedColumn(
        index,
        lambda query, row: step_place(
            query.values["run_id"],
            row[name],
            0 if occurrence is None else row[occurrence],
            None if outcome is None else row[outcome],
        ),
    )


def _loaded_run(query: Query, row: Row) -> object:
    return query.batches["steps"]["run_id"][row[0] - 1]


def response_places(scope: str, key: str) -> tuple[Place, Place]:
    """The places of the headers and of the body of a stored response."""
    return ("response headers", scope, key), ("response body", scope, key)


_CLAIMED = _message(17, 1)
_STORED_MESSAGE = _message(4)
_ANSWER = tuple(
    ReturnedColumn(index, lambda query, _, kind=kind: (kind, str(query.values["scope"]), str(query.values["key"])))  # type: ignore[misc]
    for index, kind in ((5, "response headers"), (6, "response body"))
)
_HEADERS = ReturnedColumn(5, lambda _, row: ("endpoint headers", str(row[0])))
_SECRETS = tuple(ReturnedColumn(index, lambda _, row: ("endpoint", str(row[0]))) for index in (6, 7))
_SCHEDULE = (ReturnedColumn(2, lambda _, row: ("schedule", str(row[0]))),)

RETURNED: Mapping[str, tuple[ReturnedColumn, ...]] = {
    "claim": _CLAIMED,
    "discover_and_claim": _CLAIMED,
    "claim_batch": _CLAIMED,
    "flow_messages": _message(4),
    "flow_unkeyed": _message(3, 5),
    "payload": _given(0, "message", "message_id"),
    "find_keyed": _message(6, 4),
    "find_messages": _STORED_MESSAGE,
    "list_messages": _STORED_MESSAGE,
    "request_messages": _STORED_MESSAGE,
    "workflow_run": _given(12, "message", "run_id"),
    "fork_origin": _given(3, "message", "run_id"),
    "outcomes": _result(7, 0),
    "result_of": _given(0, "result", "delivery_id"),
    "stage_results": _result(0, 1),
    "list_members": _result(8, 3),
    "load_steps": (
        ReturnedColumn(8, lambda query, row: step_place(_loaded_run(query, row), row[6], row[7], row[9])),
        ReturnedColumn(11, lambda query, row: ("item", str(_loaded_run(query, row)), str(row[6]), str(row[7]))),
    ),
    "resolve_wait": (ReturnedColumn(2, lambda query, _: ("signal", str(query.values["run_id"]))),),
    "run_result": (_of_run(5, 4),),
    "finished_steps": (_of_run(1, 0),),
    "item_results": (
        ReturnedColumn(0, lambda query, row: step_place(query.values["run_id"], query.values["step"], row[2])),
    ),
    "workflow_run_steps": (_of_run(7, 0, 1, 6),),
    "workflow_run_items": (_of_run(2, 0, 1),),
    "workflow_run_signals": _given(2, "signal", "run_id"),
    "reserve_request": _ANSWER,
    "read_request": _ANSWER,
    "endpoints": (_HEADERS, *_SECRETS),
    "listed_endpoints": (_HEADERS,),
    "schedule": _SCHEDULE,
    "schedules": _SCHEDULE,
    "due_schedules": _SCHEDULE,
}
