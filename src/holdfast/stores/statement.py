"""Named SQL statements, read from the `.sql` files of a dialect.

A file consists of blocks. `-- name: claim` starts a statement, `-- fragment: claimed` a fragment that statements name
in braces. The comment lines after a name state the intent of the statement. The marks `-- once`, `-- each: batch` and
`-- all: batch` split a statement into steps. SQLite needs steps because it cannot change two tables in one statement;
in PostgreSQL they are common table expressions. `each` runs a step for each row of the batch, `all` runs it once with
all rows as JSON in `:rows`. The batch `returned` contains the rows of the last step that returned any. A step that
consists of an empty slot is omitted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from holdfast.core.errors import ConfigurationError

_HEAD = re.compile(r"^-- (name|fragment): (\w+)$")
_MARK = re.compile(r"^-- (?:once|(each|all): (\w+))$")
_SLOT = re.compile(r"\{(\w+)\}")
# A colon that starts a parameter: not the second colon of a cast, not inside a literal such as '%H:%M'.
_PARAMETER = re.compile(r"'(?:[^']|'')*'|(?<![:\w]):([a-z_]\w*)")

_ANSWERS = re.compile(r"^\s*(select|with|pragma)\b|\breturning\b")

ONCE = ""
RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class StatementStep:
    """Statements that run together: once, for each row of `batch`, or once with `all` of its rows."""

    batch: str
    statements: tuple[str, ...]
    all: bool = False

    @property
    def answers(self) -> bool:
        """Whether it returns rows."""
        return any(_ANSWERS.search(text) for text in self.statements)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement before rendering: its steps contain slots in braces."""

    name: str
    intent: str
    steps: tuple[StatementStep, ...]


class Statements:
    """All statements of one dialect; `render` fills the slots and caches the result."""

    def __init__(self, package: str, constants: Mapping[str, str]) -> None:
        self._statements, self._fragments = _read(package)
        self._constants = dict(constants)
        self.render = cache(self._render)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._statements)

    @property
    def fragments(self) -> frozenset[str]:
        return frozenset(self._fragments)

    def intent(self, name: str) -> str:
        return self._statements[name].intent

    def _render(
        self, name: str, slots: tuple[tuple[str, tuple[str, ...]], ...], limit: int | None
    ) -> tuple[StatementStep, ...]:
        """The statement's steps with all slots filled: `slots` first, then constants, then fragments.

        A step that is then empty is omitted.
        """
        chosen = {slot: "\n".join(self._fragments[f] for f in fragments) for slot, fragments in slots}
        if limit is not None:
            chosen["limit"] = str(int(limit))

        def fill(match: re.Match[str]) -> str:
            slot = match[1]
            for source in (chosen, self._constants, self._fragments):
                if slot in source:
                    return _SLOT.sub(fill, source[slot])
            raise ConfigurationError(f"statement {name!r} has no value for {{{slot}}}")

        filled = [
            replace(step, statements=tuple(text for part in step.statements if (text := _SLOT.sub(fill, part))))
            for step in self._statements[name].steps
        ]
        return tuple(step for step in filled if step.statements)


def parameters(text: str, replace: Callable[[str], str]) -> str:
    """The SQL text with each `:name` outside literals replaced by the result of `replace(name)`."""
    return _PARAMETER.sub(lambda m: replace(m[1]) if m[1] else m[0], text)


@cache
def _read(package: str) -> tuple[dict[str, Statement], dict[str, str]]:
    statements: dict[str, Statement] = {}
    fragments: dict[str, str] = {}
    folders = [folder for folder in resources.files(package).iterdir() if folder.is_dir()]
    for file in (file for folder in folders for file in folder.iterdir() if file.name.endswith(".sql")):
        for kind, name, lines in _blocks(file.read_text(encoding="utf-8")):
            if name in statements or name in fragments:
                raise ConfigurationError(f"{file.name} defines {name!r} a second time")
            if kind == "fragment":
                fragments[name] = "\n".join(line for line in lines if line).strip()
            else:
                statements[name] = _statement(name, lines)
    return statements, fragments


def _blocks(text: str) -> list[tuple[str, str, list[str]]]:
    blocks: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            blocks.append((head[1], head[2], []))
        elif blocks:
            blocks[-1][2].append(line)
    return blocks


def _statement(name: str, lines: list[str]) -> Statement:
    intent: list[str] = []
    steps: list[tuple[str, bool, list[str]]] = []
    for line in lines:
        if mark := _MARK.match(line):
            steps.append((mark[2] or ONCE, mark[1] == "all", []))
        elif line.startswith("-- "):
            intent.append(line[3:])
        else:
            if not steps:
                steps.append((ONCE, False, []))
            steps[-1][2].append(line)
    return Statement(
        name,
        " ".join(intent),
        tuple(
            StatementStep(batch, tuple(part.strip() for part in "\n".join(body).split(";") if part.strip()), all)
            for batch, all, body in steps
            if "".join(body).strip()
        ),
    )
