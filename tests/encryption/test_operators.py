"""What operators see: ciphertext and the id of the key, or the values if their process has the app with its keys."""

import sys
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from holdfast import EncryptionKeyMissing, Holdfast
from holdfast.cipher import AesGcm
from holdfast.interfaces.cli import main
from holdfast.interfaces.console.template_env import stored_json
from tests.encryption.conftest import NEW, OLD
from tests.support.apps import MakeApp
from tests.support.worker import drain

SECRET = "plaintext-4711"


def run(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.output


async def test_the_command_line_shows_ciphertext_unless_it_has_the_app(
    hf: Holdfast, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @hf.job(result="1h")
    async def greet(name: str) -> str:
        return name

    handle = await greet.enqueue(SECRET)
    await drain(hf)
    await hf.schedules.put("daily", cron="0 7 * * *", job=greet, args={"name": SECRET}, conn=None)
    (delivery,) = (await hf.ops.message(handle.id)).deliveries
    app = tmp_path / f"app_{tmp_path.name.replace('-', '_')}.py"
    app.write_text(
        "from holdfast import Holdfast\nfrom holdfast.cipher import AesGcm\n"
        f"hf = Holdfast({dsn!r}, cipher=AesGcm({{'old': {OLD!r}}}))\n"
    )
    commands = (
        ["messages", "show", str(handle.id)],
        ["messages", "list"],
        ["deliveries", "show", str(delivery.delivery.id)],
    )
    for command in commands:
        shown = run("--dsn", dsn, *command)
        assert "encrypted, key old: " in shown
        assert SECRET not in shown
        assert SECRET in run("--dsn", dsn, "--app", f"{app}:hf", *command)
    found = orjson.loads(run("--dsn", dsn, "--format", "json", "messages", "show", str(handle.id)))
    assert found["payload"]["$encrypted"]["key"] == "old"
    assert "$encrypted" in run("--dsn", dsn, "--format", "json", "schedules", "list")
    assert SECRET in run("--dsn", dsn, "--app", f"{app}:hf", "--format", "json", "schedules", "list")
    assert "encrypted, key old" in stored_json('{"$encrypted": {"key": "old", "data": "q83v"}}')
    sys.modules.pop(app.stem, None)


async def test_declared_secrets_stay_redacted_for_an_operator_with_the_key(make_app: MakeApp) -> None:
    hf = make_app(cipher=AesGcm({"old": OLD}), redact=["iban"])
    id = (await hf.publish("note.a", {"iban": SECRET, "n": 1}, conn=None)).id
    shown = (await hf.ops.message(id)).message.payload
    assert SECRET not in shown
    assert '"n":1' in shown.replace(" ", "")


async def test_an_operator_without_the_key_cannot_run_a_schedule_now(hf: Holdfast, make_app: MakeApp) -> None:
    @hf.job()
    async def greet(name: str) -> None: ...

    await hf.schedules.put("daily", cron="0 7 * * *", job=greet, args={"name": SECRET}, conn=None)
    with pytest.raises(EncryptionKeyMissing, match="key 'old'"):
        await make_app().ops.run_schedule("daily", actor="ada")


async def test_a_search_does_not_match_ciphertext(hf: Holdfast, make_app: MakeApp) -> None:
    plain = make_app()
    for app in (hf, plain):

        @app.consumer("note.a", name="read")
        async def read(note: dict[str, str]) -> None: ...

    await hf.publish("note.a", {"text": SECRET}, conn=None)
    await plain.publish("note.a", {"text": SECRET}, conn=None)
    assert len((await plain.ops.search(SECRET)).matches) == 1
    for app in (hf, plain):
        assert (await app.ops.search("$encrypted")).matches == ()


async def test_the_command_line_counts_and_rotates_the_keys(hf: Holdfast, dsn: str, tmp_path: Path) -> None:
    await hf.publish("note.a", {"text": SECRET}, conn=None)
    assert "messages  old" in run("--dsn", dsn, "encryption", "keys")
    refused = CliRunner().invoke(main, ["--dsn", dsn, "encryption", "rotate", "--yes"])
    assert (refused.exit_code, "--app module:attribute" in refused.output) == (2, True)

    def rotate(keys: dict[str, str], *args: str) -> tuple[int, str]:
        app = tmp_path / "rotation_app.py"
        app.write_text(
            "from holdfast import Holdfast\nfrom holdfast.cipher import AesGcm\n"
            f"hf = Holdfast({dsn!r}, cipher=AesGcm({keys!r}, current='new'))\n"
        )
        result = CliRunner().invoke(main, ["--app", f"{app}:hf", "encryption", "rotate", *args])
        sys.modules.pop(app.stem, None)
        return result.exit_code, result.output

    assert rotate({"new": NEW})[0] == 4, "it asks"
    code, output = rotate({"new": NEW}, "--yes")
    assert (code, "1 value of key old cannot be decrypted" in output) == (1, True)
    code, output = rotate({"old": OLD, "new": NEW}, "--yes")
    assert (code, "encrypted 1 value with key new" in output) == (0, True)
    assert orjson.loads(run("--dsn", dsn, "--format", "json", "encryption", "keys")) == [
        {"kind": "messages", "key": "new", "values": 1}
    ]
