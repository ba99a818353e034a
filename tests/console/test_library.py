"""The console as a library: as the how-to prints it, and where its extra is not installed."""

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "console.md"
BLOCKED = "import sys; sys.modules[{name!r}] = None; "


async def test_the_how_tos_example_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {"__name__": "shop"}
    exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102
    transport = httpx2.ASGITransport(names["api"])  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        assert (await client.get("/ops/")).status_code == 401
        page = await client.get("/ops/", headers={"authorization": "Bearer ada-secret"}, follow_redirects=True)
        bare = await client.get("/ops", headers={"authorization": "Bearer ada-secret"}, follow_redirects=True)
    assert page.status_code == bare.status_code == 200
    assert "ada" in page.text
    await names["hf"].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["starlette", "jinja2"])
def test_without_its_extra_it_says_what_to_install(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(name=name) + "import holdfast.console"], capture_output=True, text=True
    )
    assert "pip install 'holdfast[console]'" in ended.stderr


def test_the_commands_help_needs_no_extra() -> None:
    program = "; ".join(f"sys.modules[{name!r}] = None" for name in ("starlette", "jinja2", "uvicorn"))
    program = f"import sys; {program}; from holdfast.interfaces.cli import main; main(['console', '--help'])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "--auth" in ended.stdout
