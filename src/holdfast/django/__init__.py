"""Holdfast in a Django project: `"holdfast.django"` in `INSTALLED_APPS`, and `from holdfast.django import hf`.

`app` is the `Holdfast` of the project; `configuration` reads `settings.HOLDFAST`, `database` finds the store of a database
alias. A call without `conn` joins the open `transaction.atomic` block of that alias (`atomic`). `connection_cleanup` closes
stale connections around each handler, `connection_store` runs a worker inside the transaction of a `TestCase` (`testing`),
`test_database` keeps the databases of Django's test runner clean, `checks` are the system checks, `admin` is a read-only page in
Django's admin, `task_backend` the backend of `django.tasks`, and `management` has `manage.py holdfast`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.django.app import DjangoHoldfast

    hf: DjangoHoldfast

__all__ = ["hf"]


if not TYPE_CHECKING:  # Django imports this module before its settings and apps are ready

    def __getattr__(name: str) -> object:
        if name != "hf":
            raise AttributeError(f"module 'holdfast.django' has no attribute {name!r}")
        from holdfast.django.app import project_app

        # As an attribute of this module, so that child processes of a worker find the app by this name.
        globals()["hf"] = project_app()
        return globals()["hf"]
