"""The HTTP API: `api.mount("/holdfast", holdfast.api.api(hf))`. It needs `pip install 'holdfast[console]'`."""

from holdfast.core.errors import ConfigurationError

try:
    from holdfast.interfaces.api.app import api
    from holdfast.interfaces.api.endpoint import Caller
except ModuleNotFoundError as missing:
    if missing.name != "starlette":
        raise
    raise ConfigurationError("the HTTP API needs starlette; run `pip install 'holdfast[console]'`") from missing
from holdfast.stores.admin.token import Scope

__all__ = ["Caller", "Scope", "api"]
