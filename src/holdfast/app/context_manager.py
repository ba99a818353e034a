"""What to use instead of `with` and `async with` on an app."""

from typing import TYPE_CHECKING, NoReturn


class NoContextManager:
    """Refuses `with` and `async with` with the remedy. Type checkers do not see the methods, and refuse both too."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            _refuse("with")

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> NoReturn:
            _refuse("async with")

        async def __aexit__(self, *_: object) -> None: ...


def _refuse(statement: str) -> NoReturn:
    raise TypeError(
        f"an app is not a context manager, so leave `{statement}` out: connections open at their first use. To close them at "
        "the end, write `async with hf.lifespan():` or `await hf.close()`, in a plain function `asyncio.run(hf.close())`"
    )
