"""`holdfast breakers` from the command line."""

import json

from tests.cli.conftest import Shop


def test_breakers_are_tripped_listed_and_reset(shop: Shop) -> None:
    empty = shop.run("breakers", "list")
    assert "no circuit breaker has recorded a failure" in empty.stderr + empty.stdout
    trip = ("breakers", "trip", "smtp", "--for", "10m", "--reason", "smtp moves", "--actor", "ada")
    assert shop.run(*trip).exit_code == 3, "it may be a typing error"
    tripped = shop.run(*trip, "--force")
    assert tripped.exit_code == 0
    assert "circuit smtp opened for 10m" in tripped.stderr
    (one,) = json.loads(shop.run("breakers", "list", "--format", "json").stdout)
    assert (one["name"], one["state"], one["why"]) == ("smtp", "open", "tripped by ada: smtp moves")
    assert "smtp" in shop.run("breakers", "list").stdout
    assert "circuit smtp closed" in shop.run("breakers", "reset", "smtp").stderr
    assert "had no failures" in shop.run("breakers", "reset", "smtp").stderr
    (one,) = json.loads(shop.run("breakers", "list", "--format", "json").stdout)
    assert one["state"] == "closed"


def test_wrong_names_and_durations_are_refused_with_their_codes(shop: Shop) -> None:
    assert shop.run("breakers", "reset", "unknown").exit_code == 3
    shop.run("breakers", "trip", "smtp", "--force")
    misspelled = shop.run("breakers", "trip", "smpt")
    assert misspelled.exit_code == 3
    assert (
        "no circuit 'smpt' in this store; did you mean 'smtp'? known: smtp; force (--force) opens one that has not failed yet"
        in misspelled.stderr
    )
    assert "smpt" not in shop.run("breakers", "list").stdout
    assert shop.run("breakers", "trip", "smtp").exit_code == 0, "it is stored"
    assert shop.run("breakers", "trip", "smtp", "--for", "soon").exit_code == 2
    assert shop.run("breakers", "trip", "no blanks").exit_code == 2
