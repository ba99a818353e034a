"""Correlation ids as fields of a log line."""

import logging

from holdfast.core.loggable import loggable


def test_no_id_can_take_a_name_that_logging_needs() -> None:
    taken = [*vars(logging.makeLogRecord({})), "message", "asctime", "event", "level"]
    assert set(loggable(dict.fromkeys(taken, "x"))) == {f"header_{name}" for name in taken}
    assert loggable({"request_id": "r-1"}) == {"request_id": "r-1"}
