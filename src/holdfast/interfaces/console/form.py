"""Posted forms, limited in size."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from holdfast.interfaces.console.security import Forbidden

_MAX_BYTES = 64 * 1024
_MAX_FIELDS = 50


async def read_form(request: Request) -> dict[str, str]:
    """Returns the form's fields. The last value wins if a field is repeated."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise Forbidden("The form is too large.", 413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise Forbidden("The form cannot be parsed.", 400) from None
