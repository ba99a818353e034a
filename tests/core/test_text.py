"""Any text becomes storable, any object printable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values.text import safe_repr, safe_str, sanitize, storable, truncated, type_name


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain é 😀", "plain é 😀"),
        ("a\x00b", "a\ufffdb"),
        ("\ud800 \udfff", "\ufffd \ufffd"),
        ("", ""),
    ],
)
def test_what_cannot_be_stored_is_replaced_visibly(text: str, clean: str) -> None:
    assert sanitize(text, 100) == clean


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("12345", "12345"), ("123456", "1234…")])
def test_a_text_that_is_cut_ends_with_an_ellipsis(text: str, shown: str) -> None:
    assert truncated(text, 5) == shown


def test_long_text_keeps_its_head_and_tail_and_says_what_was_cut() -> None:
    short = sanitize("HEAD" + "x" * 50_000_000 + "TAIL", 300)
    assert short.startswith("HEAD")
    assert short.endswith("TAIL")
    kept = short.count("x") + 8
    assert f"[{50_000_008 - kept:,} characters cut]" in short
    assert 290 <= len(short) <= 300


def test_text_at_the_limit_is_kept_whole() -> None:
    assert sanitize("x" * 300, 300) == "x" * 300


@given(st.text(), st.integers(0, 200))
def test_clean_text_fits_and_can_be_stored(text: str, limit: int) -> None:
    clean = sanitize(text * 3, limit)
    assert len(clean) <= limit
    assert storable(clean)
    assert "\x00" not in clean
    clean.encode()


@given(st.text())
def test_text_is_storable_exactly_if_it_encodes_without_nul(text: str) -> None:
    try:
        text.encode()
        fine = "\x00" not in text
    except UnicodeEncodeError:
        fine = False
    assert storable(text) is fine


class Raises:
    def __str__(self) -> str:
        raise ValueError("no")

    __repr__ = __str__


class Exits:
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class NoText:
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]

    __repr__ = __str__


class Recurses:
    def __str__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return repr(self)


class Sly(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("caught you")


class ReturnsSly:
    def __str__(self) -> str:
        return Sly("sly")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("obj", "words"),
    [(Raises(), "ValueError"), (Exits(), "SystemExit"), (NoText(), "TypeError"), (Recurses(), "Recursion")],
)
@pytest.mark.parametrize("how", [safe_str, safe_repr])
def test_an_object_that_cannot_be_printed_is_described(how, obj: object, words: str) -> None:
    text = how(obj)
    assert "cannot be printed" in text
    assert type(obj).__name__ in text
    assert words in text


@pytest.mark.parametrize("how", [safe_str, safe_repr])
def test_what_is_printed_is_plain_text(how) -> None:
    assert type(how(ReturnsSly())) is str
    assert how(ReturnsSly()) == "sly"


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupted:
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        safe_str(Interrupted())


def test_a_type_is_named_as_it_is_imported() -> None:
    assert type_name(ValueError) == "ValueError"
    assert type_name(Raises).endswith("test_text.Raises")


def test_a_type_that_hides_its_name_is_still_named() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError("nothing to see here")

    class Hidden(metaclass=Meta):
        pass

    assert "Hidden" in type_name(Hidden)
