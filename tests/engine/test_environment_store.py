"""A worker whose app has its own store says that HOLDFAST_DSN names another one."""

from pathlib import Path

import pytest

from holdfast import Holdfast, WorkerOptions
from holdfast.app.worker.environment_check import warn_about_environment
from tests.support.apps import MakeApp
from tests.support.worker import Log, logged

SQLITE = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)


@SQLITE
@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("sqlite:///other.db", "sqlite:///other.db"),
        ("postgresql://shop:s3cr3t@db.example:5433/shop", "postgresql://db.example:5433/shop"),
        ("mysql://shop:s3cr3t@db/shop", "mysql://shop:[redacted]@db/shop"),
        ("sqlite://[", "sqlite://["),
    ],
)
def test_the_warning_names_both_stores_without_a_password(
    hf: Holdfast, log: Log, monkeypatch: pytest.MonkeyPatch, given: str, name: str
) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", given)
    warn_about_environment(hf.store)
    (warning,) = logged(log, "environment store ignored")
    assert (warning["store"], warning["environment"]) == (hf.store.name, name)


@SQLITE
async def test_an_embedded_worker_warns_and_an_application_without_a_worker_does_not(
    make_app: MakeApp, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DSN", "sqlite:///other.db")
    hf = make_app()
    async with hf.lifespan():
        pass
    assert logged(log, "environment store ignored") == []
    async with hf.lifespan(workers=WorkerOptions()):
        pass
    assert len(logged(log, "environment store ignored")) == 1


@SQLITE
@pytest.mark.parametrize("given", ["", "same", "same file"])
def test_the_same_store_or_none_in_the_environment_is_no_warning(
    hf: Holdfast, log: Log, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    path = Path(hf.dsn.removeprefix("sqlite:///"))
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOLDFAST_DSN", {"": "", "same": hf.dsn, "same file": f"sqlite:///{path.name}"}[given])
    warn_about_environment(hf.store)
    assert logged(log, "environment store ignored") == []
