"""Results of handlers that keep them: what a handler returned, on its way to the settlement."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.core.change import Change, DeadLetter, Deliver, DeliverResult, Discard
from holdfast.core.errors import ConfigurationError, InvalidPayload
from holdfast.core.events import payload
from holdfast.engine.handlers.context import NO_RESULT, Context
from holdfast.engine.settlement.settler import Ack, announcing
from holdfast.stores.deliveries.result import complete_with_result
from holdfast.stores.operation import Operation


class ResultContext(Context):
    """The context of a handler with `result=`. `result` is JSON text once the function has returned."""

    __slots__ = ("_keep", "_max_bytes", "result")

    keeps_result = True

    def __init__(self, *args: Any, keep: timedelta, max_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keep, self._max_bytes = keep, max_bytes
        self.result: str | None = None

    def returned(self, result: object) -> None:
        if not self.completing:
            self.result = self._encode(result)

    def _with_result(self, completion: Operation[None], result: object) -> Operation[None]:
        if result is NO_RESULT:
            raise ConfigurationError(
                f"{self.consumer} has result=, and a value that it returns after ctx.complete cannot be stored; pass "
                "the result to ctx.complete(conn=..., result=...), even if it is None"
            )
        return complete_with_result(completion, self.claim, self._encode(result), self._keep)

    def _encode(self, result: object) -> str:
        try:
            return payload.encode(result, max_bytes=self._max_bytes)
        except InvalidPayload as error:
            # Not retried: another run would repeat the effect and return the same.
            raise ConfigurationError(
                f"the result of {self.consumer} cannot be stored: {error.path} {error.problem}; return values that JSON can "
                "represent, or leave result= out, then replay the delivery"
            ) from None

    def settlement(self, ack: Ack, change: Change, announce: Callable[[], None]) -> Ack:
        """The settlement with the result; once it is durable, `announce` wakes the callers that wait for it."""
        if type(change) is Deliver and self.result is not None:
            stored = DeliverResult(self.result, self._keep)
            ack = ack._replace(settlement=ack.settlement._replace(change=stored))
        if not isinstance(change, Deliver | DeadLetter | Discard):
            return ack
        return announcing(ack, announce)
