"""The application's own frame in a traceback."""

import pytest

from holdfast.core.failures.frame import own_frame
from holdfast.core.failures.report import report

LIBRARY = "/srv/venv/lib/python3.12/site-packages/requests/sessions.py"


def trace(*files: str, error: str = "ConnectionError: refused") -> str:
    frames = "".join(f'  File "{file}", line {n}, in f{n}\n    call()\n' for n, file in enumerate(files, start=1))
    return f"Traceback (most recent call last):\n{frames}{error}\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("/srv/shop/billing.py", LIBRARY), "/srv/shop/billing.py:1 in f1"),
        (
            ("/srv/shop/billing.py", "/srv/shop/pay.py", LIBRARY, "/usr/lib/python3.11/ssl.py"),
            "/srv/shop/pay.py:2 in f2",
        ),
        (("C:\\shop\\pay.py", "C:\\Python312\\Lib\\ssl.py"), "C:\\shop\\pay.py:1 in f1"),
        (
            ("/app/.venv/lib/python3.12/site-packages/holdfast/engine/runner.py", "/app/shop.py"),
            "/app/shop.py:2 in f2",
        ),
        (("/usr/lib/python3.11/asyncio/runners.py", "<frozen importlib>"), "<frozen importlib>:2 in f2"),
    ],
)
def test_the_innermost_frame_of_the_application_is_named(files: tuple[str, ...], expected: str) -> None:
    assert own_frame(trace(*files)) == expected


def test_of_a_chain_the_exception_that_ended_the_run_is_read() -> None:
    chained = (
        trace("/srv/shop/first.py") + "\nThe above exception was the direct cause of:\n\n" + trace("/srv/shop/last.py")
    )
    assert own_frame(chained) == "/srv/shop/last.py:1 in f1"


OURS = ("/srv/venv/lib/python3.12/site-packages/holdfast/engine/execution/runner.py", "/srv/src/holdfast/app/job.py")


@pytest.mark.parametrize("ours", OURS)
def test_an_exception_that_holdfast_raised_is_placed_where_its_cause_was_in_the_application(ours: str) -> None:
    cause = trace("/srv/shop/slow.py", "/usr/lib/python3.11/asyncio/tasks.py", error="asyncio.CancelledError")
    relation = "\nThe above exception was the direct cause of the following exception:\n\n"
    assert own_frame(cause + relation + trace(ours, error="HandlerTimeout")) == "/srv/shop/slow.py:1 in f1"


@pytest.mark.parametrize("ours", OURS)
def test_a_traceback_that_is_all_of_holdfast_has_no_frame(ours: str) -> None:
    assert own_frame(trace(ours, ours, error="HandlerTimeout")) is None


@pytest.mark.parametrize("text", [None, "", "worker lease expired", 'File "x.py", line 3'])
def test_a_text_that_is_no_traceback_has_no_frame(text: str | None) -> None:
    assert own_frame(text) is None


def test_a_report_of_a_real_exception_names_the_line_that_raised() -> None:
    try:
        raise ValueError("boom")
    except ValueError as error:
        found = own_frame(report(error).trace)
    assert found is not None
    assert "test_frame.py:" in found
    assert found.endswith(" in test_a_report_of_a_real_exception_names_the_line_that_raised")
