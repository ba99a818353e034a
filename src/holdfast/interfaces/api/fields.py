"""Fields of requests: what a client may write, as strict as the OpenAPI document says."""

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from holdfast.core.message import MAX_GENERATION
from holdfast.core.text import storable
from holdfast.ops.plans import MAX_PLAN
from holdfast.ops.trail import MOST_STEPS
from holdfast.stores.query import MAX_PAGE

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def _clean(text: str) -> str:
    if not storable(text):
        raise ValueError("it holds a character that cannot be stored, such as NUL")
    return text


def _flag(given: Any) -> Any:
    if isinstance(given, str):
        if given not in ("true", "false"):
            raise ValueError("give true or false")
        return given == "true"
    return given


def _whole(given: Any) -> Any:
    if isinstance(given, str):
        if not _WHOLE.fullmatch(given):
            raise ValueError("give a whole number")
        return int(given)
    return given


def _moment(given: Any) -> Any:
    if not isinstance(given, str) or not _TIME.fullmatch(given):
        raise ValueError("give a time with an offset, such as 2026-01-31T08:00:00Z")
    # More digits than a microsecond has are cut off.
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", given.upper()))


Text = Annotated[str, Field(max_length=500), AfterValidator(_clean)]
Reason = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_clean)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
Generation = Annotated[int, Field(ge=0, le=MAX_GENERATION)]
PageLimit = Annotated[int, Field(ge=1, le=MAX_PAGE), BeforeValidator(_whole)]
StepLimit = Annotated[int, Field(ge=1, le=MOST_STEPS), BeforeValidator(_whole)]
PlanLimit = Annotated[int, Field(ge=1, le=MAX_PLAN)]


class RequestModel(BaseModel):
    """What every request model has in common: what it does not know it refuses."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoParams(RequestModel):
    """A request without parameters."""


class LimitParams(RequestModel):
    """A list that is not paged."""

    limit: PageLimit = 50


class PageParams(LimitParams):
    """A list by pages: give the `next` of one page as `cursor` for the following."""

    cursor: Text | None = None


class WithReason(RequestModel):
    """A change, and why it is made; the audit keeps it."""

    reason: Reason
