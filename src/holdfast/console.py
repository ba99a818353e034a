"""The web console: `api.mount("/ops", console(hf, actor=staff))`. Needs `pip install 'holdfast[console]'`."""

from holdfast.core.errors import ConfigurationError

try:
    from holdfast.interfaces.console.app import console
    from holdfast.interfaces.console.user import Role, User
except ModuleNotFoundError as missing:
    library = (missing.name or "").partition(".")[0]
    if library not in ("starlette", "jinja2", "markupsafe"):
        raise
    raise ConfigurationError(f"the console needs {library}; run `pip install 'holdfast[console]'`") from missing

__all__ = ["Role", "User", "console"]
