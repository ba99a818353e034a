"""The web console of the demo, and a browser on it where there is a screen to show it on."""

import importlib.util
import os
import sys
import webbrowser
from contextlib import ExitStack

from holdfast.app.opening import open_store
from holdfast.interfaces.demo.place import Place
from holdfast.ops.service import Operations

_NEEDED = ("starlette", "jinja2", "uvicorn")


def open_console(afterwards: ExitStack, place: Place, port: int) -> str | None:
    """Serves the console beside the story; its address, or none where `holdfast[console]` is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    from holdfast.interfaces.console.serve import served_beside
    from holdfast.interfaces.console.visitor import Role

    store = open_store(place.dsn, place.schema, role="holdfast-console", pool_size=2)
    # An operator and no admin: a visitor mends what broke, and cannot have an effect applied twice.
    return afterwards.enter_context(served_beside(Operations(store), port=port, actor="visitor", role=Role.OPERATOR))


def show(address: str) -> None:
    """Opens a browser, unless the only one would take the terminal the story is told on."""
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if graphical and sys.stdout.isatty():
        webbrowser.open(address)
