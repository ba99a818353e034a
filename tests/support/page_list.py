"""Writes docs/llms.txt: rules for code that uses Holdfast, and every page with its first sentence, for coding agents.

Run `python -m tests.support.page_list` after a page was added or its first paragraph changed.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "llms.txt"
RULES = """\
## Rules for code that uses Holdfast

- Create one `Holdfast(dsn, source="shop")` per application. It reads `HOLDFAST_DSN` if no address is given.
- `conn=` of `publish` is required, and `enqueue` takes it from `job.using(conn=session)`. Pass the connection or session of the transaction that writes your own rows. `publish` with
  `conn=None`, and `enqueue` without a connection, commit at once. In Django both join the open `atomic` block.
- In code without an event loop use the twins under `.sync`: `hf.sync.publish(...)`.
- A handler may run more than once. End an effect in the same database with `await ctx.complete(conn=session)` before the commit; pass `ctx.message_id` to other services as their
  idempotency key.
- Do not catch exceptions to retry: raise. `TerminalError` is not retried, `RetryAfter("30s", "...")` is retried later, `Snooze("1h")` is no failure.
- Give a `key=` to messages that may be sent twice. The same key stores nothing and returns the first message.
- Declare secrets: `@event("user.created", redact=["email"])`.
- Run handlers with `holdfast worker --app shop.main:hf`, in tests with the pytest plugin. Check the store with `holdfast doctor`.\
"""


def written() -> str:
    """The text of the file."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    lines = ["# Holdfast", "", f"> {_summary('index.md')}", "", RULES]
    for section in nav:
        ((title, pages),) = section.items()
        lines += ["", f"## {title}", ""]
        lines += [f"- [{name}]({path}): {_summary(path)}" for name, path in _pages(pages) if "/decisions/0" not in path]
    return "\n".join(lines) + "\n"


def _pages(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The pages of a section and of the sections in it."""
    for entry in entries:
        for title, content in entry.items():
            if isinstance(content, str):
                yield title, content
            else:
                yield from _pages(content)


def _summary(path: str) -> str:
    """The first sentence of a page."""
    text = (ROOT / "docs" / path).read_text(encoding="utf-8")
    paragraphs = (
        part.strip() for part in re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).split("\n\n")
    )
    first = next(part for part in paragraphs if part and not part.startswith(("#", "|", "!", "<", "-", "*", ":::")))
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:]) (?=[A-Z`])", plain, maxsplit=1)[0].rstrip(":")


if __name__ == "__main__":
    TARGET.write_text(written(), encoding="utf-8")
