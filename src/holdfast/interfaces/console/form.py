"""What was posted, bounded."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from holdfast.interfaces.console.guard import NotAllowed

_LARGEST = 64 * 1024
_FIELDS = 50


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of one that came twice the last."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise NotAllowed("the form is too large", 413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS))
    except ValueError:
        raise NotAllowed("the form cannot be read", 400) from None
