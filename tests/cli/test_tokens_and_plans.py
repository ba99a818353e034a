"""`holdfast tokens` and `holdfast plans` from the command line."""

import json
from pathlib import Path

from tests.cli.conftest import Shop


def test_a_token_is_made_listed_and_revoked_and_its_secret_shown_once(shop: Shop) -> None:
    made = shop.run("tokens", "create", "--name", "ci", "--scope", "operate", "--expires", "90d", "--actor", "ada")
    secret = made.stdout.strip()
    assert made.exit_code == 0
    assert secret.startswith("hf_")
    assert "not shown again" in made.stderr
    (one,) = json.loads(shop.run("tokens", "list", "--format", "json").stdout)
    assert (one["name"], one["scope"], one["valid"], one["created_by"]) == ("ci", "operate", True, "ada")
    listed = shop.run("tokens", "list").stdout
    assert "valid" in listed
    assert secret not in listed + json.dumps(one)
    taken = shop.run("tokens", "create", "--name", "ci")
    assert (taken.exit_code, "in use" in taken.stderr) == (4, True)
    assert shop.run("tokens", "revoke", "ci", "--reason", "lost").exit_code == 0
    assert "revoked" in shop.run("tokens", "list").stdout
    assert shop.run("tokens", "revoke", "ci").exit_code == 3
    assert shop.run("tokens", "create", "--name", "no blanks").exit_code == 2
    assert shop.run("tokens", "create", "--name", "x", "--scope", "all").exit_code == 2
    whole = json.loads(shop.run("tokens", "create", "--name", "ci", "--format", "json").stdout)
    assert whole["secret"].startswith(whole["token"]["prefix"])


def test_a_dry_run_stores_a_plan_that_is_started_and_shown(shop: Shop, tmp_path: Path) -> None:
    assert "no stored plans" in shop.run("plans", "list").stderr
    file = tmp_path / "plan.json"
    dry_run = ("replay", "--status", "failed", "--limit", "100", "--dry-run", "--plan", file, "--actor", "ada")
    saved = shop.run(*dry_run)
    assert saved.exit_code == 0
    held, id = len(json.loads(file.read_text())["items"]), json.loads(file.read_text())["id"]
    assert f"next: holdfast plans start {id}" in saved.stderr
    refused = shop.run("plans", "pause", id)
    assert (refused.exit_code, "ready" in refused.stderr) == (4, True)
    assert shop.run("plans", "start", id, "--no-wait", "--actor", "bob").exit_code == 0
    assert shop.run("plans", "pause", id).exit_code == 0
    resumed = shop.run("plans", "resume", id, "--actor", "bob")
    assert resumed.exit_code == 0
    (one,) = json.loads(shop.run("plans", "list", "--state", "done", "--format", "json").stdout)
    assert (one["id"], one["done"], one["left"], one["started_by"]) == (id, held, 0, "bob")
    assert f"done {held}" in shop.run("plans", "show", id).stdout
    assert shop.run("plans", "start", id).exit_code == 4
    assert shop.run("plans", "show", "00000000-0000-0000-0000-000000000000").exit_code == 3
