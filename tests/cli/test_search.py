"""`holdfast search` and the other front ends that search."""

import json

from tests.cli.conftest import Shop


def test_an_operator_finds_a_group_and_deliveries_by_a_text(either: Shop) -> None:
    found = either.run("search", "card declined")
    assert found.exit_code == 0, found.stderr
    assert "card declined" in found.stdout
    assert "error" in found.stdout.splitlines()[-1]
    assert "searched all dead letters and all other deliveries" in found.stderr
    read = json.loads(either.run("search", "card declined", "--format", "json").stdout)
    assert (len(read["groups"]), len(read["matches"]), read["next"]) == (1, 6, None), (
        "five dead letters and one that was set aside"
    )


def test_what_is_not_there_is_said(shop: Shop) -> None:
    assert "nothing found" in shop.run("search", "nosuchthing").stderr
    assert shop.run("search", "x").exit_code == 2
