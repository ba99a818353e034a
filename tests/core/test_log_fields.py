"""Correlation ids as fields of a log line."""

import logging

from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.telemetry.log_line import one_line


def test_no_id_can_take_a_name_that_logging_needs() -> None:
    taken = [*vars(logging.makeLogRecord({})), "message", "asctime", "event", "level"]
    assert set(log_fields(dict.fromkeys(taken, "x"))) == {f"header_{name}" for name in taken}
    assert log_fields({"request_id": "r-1"}) == {"request_id": "r-1"}


def test_a_header_can_neither_steer_a_terminal_nor_pose_as_the_error() -> None:
    headers = {"x\x1b[2J\n\ny": "a\x1b]0;title\x07", "exception": "Traceback: forged", "stack": "s", "error": "e"}
    assert log_fields(headers) == {
        "x\\x1b[2J\\n\\ny": "a\\x1b]0;title\\x07",
        "header_exception": "Traceback: forged",
        "header_stack": "s",
        "header_error": "e",
    }


def test_a_dead_letter_before_its_limit_is_not_shown_as_one_of_several_attempts() -> None:
    fields: dict[str, object] = {"consumer": "bill", "attempt": 1, "max_attempts": 5}
    assert one_line("dead letter", fields) == "dead letter: bill attempt 1"
    assert one_line("delivery retried", fields) == "delivery retried: bill attempt 1/5"
    assert one_line("dead letter", {**fields, "attempt": 5}) == "dead letter: bill attempt 5/5"
