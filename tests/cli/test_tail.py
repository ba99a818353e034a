"""`holdfast tail` and `holdfast top`."""

import json
import time

import pytest

from tests.cli.conftest import Shop


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_tail_prints_a_line_for_each_delivery_and_ends_with_ctrl_c(
    either: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", interrupted)
    tail = either.run("tail", "--since", "1d")
    assert (tail.exit_code, tail.stderr) == (0, "")
    for id in either.dead:
        assert str(id) in tail.stdout
    assert "RuntimeError" in tail.stdout or "Error" in tail.stdout
    lines = either.run("tail", "--since", "1d", "--status", "failed", "--json").stdout.splitlines()
    assert {json.loads(line)["id"] for line in lines} == {str(id) for id in either.dead}
    assert either.run("tail").stdout == "", "nothing has happened since its start"
    only = either.run("tail", "--since", "1d", "--consumer", "mail", "--once")
    assert [line for line in only.stdout.splitlines() if "  mail  " not in line and line[:1] != " "] == []


def test_tail_refuses_what_it_cannot_follow(shop: Shop) -> None:
    wrong = shop.run("tail", "--status", "dead")
    assert wrong.exit_code == 2
    assert "'discarded'" in wrong.stderr


def test_top_without_a_terminal_prints_once(either: Shop) -> None:
    top = either.run("top")
    assert top.exit_code == 0, top.stderr
    assert "last minute:" in top.stdout
    assert "billing" in top.stdout
    read = json.loads(either.run("top", "--json").stdout)
    assert read["stats"]["failed"] == len(either.dead)
    assert set(read) == {"stats", "last_minute", "workers"}


@pytest.mark.long
def test_on_a_terminal_no_line_is_longer_than_80_columns(shop: Shop) -> None:
    for command in (("tail", "--since", "1d", "--once"), ("top", "--once")):
        code, printed = shop.on_terminal(*command)
        assert code == 0, printed
        assert max(len(line) for line in printed.splitlines()) <= 80


@pytest.mark.long
def test_tail_ends_when_its_reader_does(shop: Shop) -> None:
    with shop.start("tail", "--since", "1d", "--every", "0.1s") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(30), process.stderr.read()) == (0, "")
