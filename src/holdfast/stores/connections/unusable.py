"""Connections that their owner has closed, or that belong to another thread: the driver's errors name no remedy."""

CLOSED = "it is closed; make the call before you close it, or open another one"


def sqlite_problem(error: Exception) -> str | None:
    """The remedy for an error of `sqlite3` about the connection itself; None for another error."""
    if type(error).__name__ != "ProgrammingError":
        return None
    if "closed database" in str(error):
        return CLOSED
    if "same thread" in str(error):
        return "it was opened in another thread; open one in this thread, or pass check_same_thread=False to sqlite3.connect"
    return None
