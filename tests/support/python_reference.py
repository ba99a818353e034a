"""Writes the names of each page of docs/reference/python with their first sentences, for readers of the Markdown files.

The built site has the full docstrings on the same pages. Run `python -m tests.support.python_reference` after a docstring
of a public name changed, or after a name was added to a page.
"""

import inspect
import re
from importlib import import_module
from pathlib import Path

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference" / "python").glob("*.md"))
_NAME = re.compile(r"^::: (holdfast[\w.]*)\.(\w+)$", re.MULTILINE)
_TABLE = re.compile(r"^\| name \| what it is \|\n.*?(?=^::: )", re.DOTALL | re.MULTILINE)


def written(page: Path) -> str:
    """The text of a page: its introduction, the table of its names, and the directives that the site is built from."""
    text = _TABLE.sub("", page.read_text(encoding="utf-8"))
    names = _NAME.findall(text)
    rows = [f"| `{name}` | {_first_sentence(getattr(import_module(module), name))} |" for module, name in names]
    module, name = names[0]
    note = (
        f"Signatures and members: `python -m pydoc {module}.{name}`, or this page as `make docs` builds it "
        f"(`site/reference/python/{page.stem}.html`)."
    )
    introduction, directive, rest = text.partition("\n::: ")
    return "\n".join([introduction, "| name | what it is |", "|---|---|", *rows, "", note, directive + rest])


def _first_sentence(documented: object) -> str:
    paragraph = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph, maxsplit=1)[0].replace("|", "\\|")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")
