"""Field types and base models of requests. Validation is as strict as the OpenAPI document states."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import MAX_GENERATION
from holdfast.core.values.text import storable
from holdfast.interfaces.presentation.filters import parse_timestamp
from holdfast.ops.queries.pending_count import MOST_PENDING
from holdfast.ops.queries.request_trace import MAX_TRACED
from holdfast.stores.admin.plan_creation import MAX_PLAN
from holdfast.stores.queries.query import MAX_PAGE

_WHOLE = re.compile(r"-?[0-9]{1,18}")


def _clean(text: str) -> str:
    if not storable(text):
        raise ValueError("it contains a character that cannot be stored, such as NUL")
    return text


def _flag(given: Any) -> Any:
    if isinstance(given, str):
        if given not in ("true", "false"):
            raise ValueError("must be true or false")
        return given == "true"
    return given


def _whole(given: Any) -> Any:
    if isinstance(given, str):
        if not _WHOLE.fullmatch(given):
            raise ValueError("must be an integer")
        return int(given)
    return given


def _timestamp(given: Any) -> Any:
    try:
        return parse_timestamp(given if isinstance(given, str) else "")
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


Text = Annotated[str, Field(max_length=500), AfterValidator(_clean)]
Reason = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_clean)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Timestamp = Annotated[
    AwareDatetime, BeforeValidator(_timestamp), WithJsonSchema({"type": "string", "format": "date-time"})
]
Generation = Annotated[int, Field(ge=0, le=MAX_GENERATION)]
PageLimit = Annotated[int, Field(ge=1, le=MAX_PAGE), BeforeValidator(_whole)]
PendingBound = Annotated[int, Field(ge=1, le=MOST_PENDING), BeforeValidator(_whole)]
StepLimit = Annotated[int, Field(ge=1, le=MAX_TRACED), BeforeValidator(_whole)]
PlanLimit = Annotated[int, Field(ge=1, le=MAX_PLAN)]


class RequestModel(BaseModel):
    """Base of all request models. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParams(RequestModel):
    """A request without parameters."""


class LimitParams(RequestModel):
    """Parameters of a list without pages."""

    limit: PageLimit = 50


class PageParams(LimitParams):
    """Parameters of a list with pages. Pass `next` of one page as `cursor` to get the next page."""

    cursor: Text | None = None


class WithReason(RequestModel):
    """A change with its reason, which is stored in the audit log."""

    reason: Reason
