"""Why a database file cannot be opened: the facts that SQLite's own messages leave out."""

import os
import pwd
from pathlib import Path


def file_problem(path: Path, message: str) -> str:
    """The cause of SQLite's `message` with the path and the user, such as a missing folder; else the message with the path."""
    path = path.absolute()
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if path.is_dir():
        return f"{path} is a folder"
    if not path.exists():
        return f"{_user()} cannot create files in {folder}" if not _is_writable(folder) else f"{path}: {message}"
    if not os.access(path, os.R_OK):
        return f"{_user()} cannot read {path}"
    if not _is_writable(path):
        return f"{_user()} cannot write {path}"
    if not _is_writable(folder):
        return f"{_user()} cannot create files in {folder}, where SQLite writes its log"
    return f"{path}: {message}"


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK)


def _user() -> str:
    try:
        return f"user {pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"user {os.getuid()}"
