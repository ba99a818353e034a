"""Error responses as RFC 9457 problem details: a status, a stable `code` and a detail that names the remedy."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from holdfast.core import errors
from holdfast.core.redaction.mask import mask

_STATUSES: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.NotFound, 404),
    (errors.Refused, 409),
    (errors.KeyConflict, 409),
    (errors.KeyRequired, 400),
    (errors.ConfigurationError, 422),
    (errors.InvalidName, 422),
    (errors.InvalidPayload, 422),
    (errors.InvalidKey, 422),
    (errors.PermissionDenied, 403),
    (errors.StoreError, 503),
    (errors.BrokerUnavailable, 503),
)
_TITLES = {
    400: "Bad request",
    401: "Authentication required",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict with the current state",
    413: "Request body too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Unprocessable request",
    500: "Internal server error",
    503: "Store unavailable",
}
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Problem(Exception):
    """An error response. `field_errors` name each invalid field."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field_errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field_errors = status, code, detail, tuple(field_errors)
        self.headers = dict(headers or {})


def problem_of(error: errors.HoldfastError) -> Problem:
    """The problem for an error of Holdfast. Its class determines status and code, its text is the detail."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    code = _WORD.sub("_", type(error).__name__).lower()
    headers = {"retry-after": "1"} if status == 503 else {}
    return Problem(status, code, mask(str(error)), headers=headers)


def invalid(status: int, code: str, where: str, error: ValidationError) -> Problem:
    """The problem for a failed validation, with every invalid field."""
    field_errors = [
        {"field": ".".join(str(part) for part in one["loc"]) or where, "problem": _message(one["type"], one["msg"])}
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    named = ", ".join(f"{one['field']} ({one['problem']})" for one in field_errors[:5])
    return Problem(status, code, f"the {where} is invalid: {named}", field_errors=field_errors)


def respond(problem: Problem) -> Response:
    """The HTTP response for a problem."""
    body: dict[str, Any] = {
        "type": f"urn:holdfast:{problem.code}",
        "title": _TITLES.get(problem.status, "Request failed"),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
    }
    if problem.field_errors:
        body["errors"] = problem.field_errors
    headers = {"cache-control": "no-store", **problem.headers}
    return Response(orjson.dumps(body), problem.status, headers, media_type="application/problem+json")


def _message(kind: str, message: str) -> str:
    return "unknown field" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
