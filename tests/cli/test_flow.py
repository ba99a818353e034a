"""Flow control on the command line: keys, changed limits, paused keys."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

from holdfast.runtime.store_factory import open_store
from tests.cli.conftest import Shop
from tests.support.flow import LIMITED, furnish_flow, furnish_keys

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "flow-control.md"


def test_keys_show_what_holds_them_up_and_the_next_command(either: Shop) -> None:
    store = open_store(either.dsn)
    head = asyncio.run(furnish_keys(store))
    store.close_sync()
    shown = either.run("consumers", "keys", "sync")
    assert f"by dead letter {head}" in shown.stdout
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == ["acme", "globex", "initech"]
    assert "sync: order by tenant, block on dead; 0 running" in shown.stderr
    assert f"see what blocks acme: holdfast dlq show {head}" in shown.stderr
    page = json.loads(either.run("consumers", "keys", "sync", "--limit", "1", "--format", "json").stdout)
    assert ([one["key"] for one in page["keys"]], page["next"]) == (["acme"], "acme")
    assert "next page: add --after acme" in either.run("consumers", "keys", "sync", "--limit", "1").stderr
    assert "globex" in either.run("consumers", "keys", "sync", "--state", "paused").stdout
    assert "order by tenant" in either.run("consumers", "list").stdout
    wrong = either.run("consumers", "keys", "billing")
    assert wrong.exit_code != 0
    assert "consumers with flow control: sync" in wrong.stderr


def test_limits_and_keys_are_changed(either: Shop) -> None:
    store = open_store(either.dsn)
    asyncio.run(furnish_flow(store, "sync", LIMITED, "acme corp", "globex"))
    store.close_sync()
    assert "limits of consumer sync changed: limit 5" in either.run("consumers", "limit", "sync", "--limit", "5").stderr
    assert "declared -> limit 5" in either.run("audit", "list", "--action", "limit").stdout
    unknown = either.run("consumers", "limit", "snyc", "--limit", "5")
    assert (unknown.exit_code, "did you mean 'sync'?" in unknown.stderr) == (3, True)
    assert "already had these values" in either.run("consumers", "limit", "sync", "--limit", "5").stderr
    assert "limit 5 by tenant (declared 2)" in either.run("consumers", "keys", "sync").stderr
    for wrong in (["--limit", "0"], ["--rate", "fast"], ["--rate", "1/1s"], []):
        answer = either.run("consumers", "limit", "sync", *wrong)
        assert answer.exit_code != 0, wrong
    assert either.run("consumers", "limit", "sync", "--reset", "--reason", "as before").exit_code == 0
    paused = either.run("consumers", "pause-key", "sync", "acme corp")
    assert "resume it with `holdfast consumers resume-key sync 'acme corp'`" in paused.stderr
    assert (
        "no deliveries with it; force (--force) pauses it"
        in either.run("consumers", "pause-key", "sync", "acme").stderr
    )
    assert "key acme corp of consumer sync resumed" in either.run("consumers", "resume-key", "sync", "acme corp").stderr
    assert "pause-key" in either.run("audit", "list", "--target", "consumer:sync").stdout


def test_the_program_of_the_guide_runs_as_printed(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(from dataclasses import dataclass.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    more = """
hf.ops.sync.migrate()
hf.sync.publish(OrderPlaced(order_id=1, tenant_id="acme", customer_id="c1"), conn=None)
for one in hf.ops.sync.consumers():
    if one.flow is not None:
        print(one.name, one.flow.key, [key.key for key in hf.ops.sync.keys(one.name).keys])
"""
    (tmp_path / "shop.py").write_text(program + more)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "charge tenant_id ['acme']",
        "export tenant_id ['acme']",
        "notify tenant_id ['acme']",
        "project customer_id ['c1']",
    ]


def test_the_guide_has_the_commands_that_exist(either: Shop) -> None:
    commands = re.findall(r"^\| `holdfast ([a-z-]+) ([a-z-]+)[ `]", GUIDE.read_text(), re.MULTILINE)
    assert len(commands) >= 5
    for group, name in commands:
        assert either.run(group, name, "--help").exit_code == 0, (group, name)
