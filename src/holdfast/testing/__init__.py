"""Test support for applications: a pytest plugin with a real store and worker, injected failures and a movable clock.

`plugin` has the fixtures. `no_wait` removes the waits between retries.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.waits import no_wait

__all__ = ["no_wait"]


if not TYPE_CHECKING:  # pytest imports the plugin in every run, so this package imports nothing before it is used

    def __getattr__(name: str) -> object:
        if name != "no_wait":
            raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
        from holdfast.testing.waits import no_wait

        return no_wait
