"""Serves the web console during the demo and opens a browser if there is a display."""

import importlib.util
import os
import sys
import webbrowser
from contextlib import ExitStack

from holdfast.interfaces.demo.config import DemoConfig
from holdfast.ops.service import Operations
from holdfast.runtime.store_factory import open_store

_NEEDED = ("starlette", "jinja2", "uvicorn")


def open_console(afterwards: ExitStack, config: DemoConfig, port: int) -> str | None:
    """Serves the console in the background; returns its URL, or None if `holdfast[console]` is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        return None
    from holdfast.interfaces.console.user import Role
    from holdfast.interfaces.server.standalone import serve_in_thread

    store = open_store(config.dsn, config.schema, role="holdfast-console", pool_size=2)
    # Operator, not admin: a visitor can replay dead letters, but not rerun delivered work.
    return afterwards.enter_context(serve_in_thread(Operations(store), port=port, actor="visitor", role=Role.OPERATOR))


def show(address: str) -> None:
    """Opens a graphical browser; never a text browser, which would take over the terminal."""
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if graphical and sys.stdout.isatty():
        webbrowser.open(address)
