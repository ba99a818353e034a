"""Errors as RFC 9457 problems: a status, a `code` that stays the same, and what to do next."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from holdfast.core import errors
from holdfast.core.mask import mask

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
    400: "The request cannot be read",
    401: "A token is needed",
    403: "This is not allowed",
    404: "There is no such thing",
    405: "This cannot be done here",
    409: "Its state does not allow this",
    413: "The request is too large",
    415: "The body is not JSON",
    421: "This host is not served here",
    422: "The request asks for what cannot be",
    500: "Something is broken in Holdfast",
    503: "The store cannot answer now",
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
    """What an error of ours is to a client: its class gives status and code, its text the detail."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    code = _WORD.sub("_", type(error).__name__).lower()
    headers = {"retry-after": "1"} if status == 503 else {}
    return Problem(status, code, mask(str(error)), headers=headers)


def invalid(status: int, code: str, where: str, error: ValidationError) -> Problem:
    """A model that does not fit, with every field at fault by its name."""
    field_errors = [
        {"field": ".".join(str(part) for part in one["loc"]) or where, "problem": _meaning(one["type"], one["msg"])}
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    named = ", ".join(f"{one['field']} ({one['problem']})" for one in field_errors[:5])
    return Problem(status, code, f"the {where} is refused: {named}", field_errors=field_errors)


def respond(problem: Problem) -> Response:
    """The answer to a problem."""
    body: dict[str, Any] = {
        "type": f"urn:holdfast:{problem.code}",
        "title": _TITLES.get(problem.status, "The request failed"),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
    }
    if problem.field_errors:
        body["errors"] = problem.field_errors
    headers = {"cache-control": "no-store", **problem.headers}
    return Response(orjson.dumps(body), problem.status, headers, media_type="application/problem+json")


def _meaning(kind: str, message: str) -> str:
    return "there is no such field" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
