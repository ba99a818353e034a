"""`holdfast projectors`, as operators type it."""

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from holdfast.interfaces.cli import main
from tests.projections import ledger
from tests.projections.ledger import expected, order, result
from tests.support.worker import drain

APP = ("--app", "tests.projections.ledger:hf")


def run(dsn: str, *arguments: str) -> Result:
    answer = CliRunner().invoke(main, arguments, env={"HOLDFAST_DSN": dsn}, prog_name="holdfast")
    assert "Traceback" not in answer.stderr
    return answer


async def furnished(dsn: str) -> None:
    hf = ledger.build(dsn)
    ledger.tables(hf)
    await hf.publish_many([order(n) for n in range(30)], conn=None)
    await drain(hf, concurrency=3)
    await hf.close()
    ledger.ask(dsn, "delete from totals")


def test_projectors_are_listed_and_rebuilt_by_an_operator(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TEST_PLACE", raising=False)
    asyncio.run(furnished(dsn))
    listed = run(dsn, "projectors", "list")
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert listed.stdout.count("succeeded") == 3

    rebuilt = run(dsn, "projectors", "rebuild", "totals", *APP, "--actor", "ada")
    assert rebuilt.exit_code == 0, rebuilt.stderr
    assert "projector totals: 30 events applied, new result active" in rebuilt.stderr
    assert result(dsn, "totals") == expected([order(n) for n in range(30)])["totals"]

    refused = run(dsn, "projectors", "rebuild", "counts", *APP)
    assert (refused.exit_code, "pass --yes" in refused.stderr) == (4, True)
    in_place = run(dsn, "projectors", "rebuild", "counts", *APP, "--yes", "--format", "json")
    assert json.loads(in_place.stdout)[0]["online"] is False
    assert run(dsn, "projectors", "rebuild", "nobody", *APP).exit_code == 3

    states = {one["name"]: one for one in json.loads(run(dsn, "projectors", "list", "--format", "json").stdout)}
    rebuilds = {name: one["rebuild"] and one["rebuild"]["state"] for name, one in states.items()}
    assert rebuilds == {"counts": "done", "latest": None, "totals": "done"}
    assert states["totals"]["rebuild"]["by"] == "ada"
    assert states["totals"]["position"] == states["totals"]["newest"]

    caught = run(dsn, "consumers", "catch-up", "latest", "--from", "1h")
    assert (caught.exit_code, caught.stderr.strip()) == (0, "added 0 deliveries of latest")
