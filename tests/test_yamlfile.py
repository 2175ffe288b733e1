"""YAML that people write: what its words mean, where its values stand, and everything that is
refused.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.yamlfile import Document, load, loads, read_text
from tests.support.examples import examples

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("on", "on"),
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("8", 8),
        ("-3", -3),
        ("+3", 3),
        ("0", 0),
        ("-0", 0),
        ("022", "022"),
        ("00", "00"),
        ("0x16", "0x16"),
        ("0o17", "0o17"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("1e999", "1e999"),
        ("e3", "e3"),
        (".e3", ".e3"),
        (".", "."),
        ("-", None),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("nan", "nan"),
        ("1.", "1."),
        ("01.5", "01.5"),
        ("9" * 18, int("9" * 18)),
        ("9" * 5000, "9" * 5000),
        ("2020-01-01", "2020-01-01"),
        ("10.11.0.2", "10.11.0.2"),
        ("'8'", "8"),
        ('"true"', "true"),
        ("'~'", "~"),
        ("fd00::1", "fd00::1"),
        ("=", "="),
        ('"a\\0b"', "a\0b"),
    ],
)
def test_a_word_means_what_yaml_1_2_says(written: str, value: Any) -> None:
    if written == "-":
        value = [None]
    found = loads(f"key:\n  {written}\n", "x").value["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("end", ["\n---\n", "\n---", "\n...\n", "\n---\n# the end\n"])
def test_a_mark_after_which_nothing_comes_begins_no_second_document(end: str) -> None:
    assert loads(f"a: 1{end}", "file").value == {"a": 1}


def test_keys_are_always_the_written_text() -> None:
    document = loads("1: a\ntrue: b\n10.0: c\nnull: d\n022: e\n10.11.0.2: f\n'': g\n", "x")
    assert list(document.value) == ["1", "true", "10.0", "null", "022", "10.11.0.2", ""]


def test_every_value_has_the_line_it_was_written_on() -> None:
    text = (
        "# head\nhosts:\n  node1:\n    gpus: 8\n    list:\n      - a\n      - {b: 1,\n         c: 2}\n"
        "  node2: &x {gpus: 4}\n  node3: *x\n"
    )
    document = loads(text, "x")
    lines = {
        (): 2,
        ("hosts",): 2,
        ("hosts", "node1"): 3,
        ("hosts", "node1", "gpus"): 4,
        ("hosts", "node1", "list", 1): 7,
        ("hosts", "node1", "list", 1, "c"): 8,
        ("hosts", "node2"): 9,
        ("hosts", "node3"): 10,
        ("hosts", "node3", "gpus"): 10,
        ("hosts", "missing"): 2,
        ("nowhere", "at", "all"): 2,
    }
    assert {path: document.line(path) for path in lines} == lines
    assert document.value["hosts"]["node3"] == {"gpus": 4}


def nested(levels: int) -> str:
    return "a: " + "[" * levels + "]" * levels + "\n"


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)

BAD = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", 3, "expected each key once, got 'a' again", "line 1"),
    "duplicate key in flow": ("a: {b: 1,\n  b: 2}\n", 2, "got 'b' again", "line 1"),
    "duplicate key, quoted": ("on: 1\n'on': 2\n", 2, "got 'on' again", "line 1"),
    "python tag": (
        "a: !!python/object/apply:os.system [id]\n",
        1,
        "expected no tags, got 'tag:yaml.org",
        "remove the tag",
    ),
    "plain tag": ("a:\n  b: !!str 1\n", 2, "expected no tags", "remove the tag"),
    "local tag": ("a: !vault |\n  abc\n", 1, "expected no tags, got '!…'", "needs quotes"),
    "bare tag": ("a: ! x\n", 1, "expected no tags, got '!'", "remove the tag"),
    "tag on a key": ("!!str a: 1\n", 1, "expected no tags", "remove the tag"),
    "tag on a mapping": ("--- !!map\na: 1\n", 1, "expected no tags", "remove the tag"),
    "merge key": ("a: &a {x: 1}\nb:\n  <<: *a\n", 3, "merge key '<<'", "write the keys out"),
    "unknown alias": ("a: *b\n", 1, "expected a known anchor, got '*…'", "needs quotes"),
    "alias of itself": ("a: &a [*a]\n", 1, "expected a known anchor, got '*…'", "not around"),
    "101 aliases": (
        "a: &a 1\nb:\n" + "  - *a\n" * 101,
        103,
        "at most 100 aliases",
        "write the values out",
    ),
    "nested aliases": (LAUGHS, 6, "at most 600000 values", "write them out"),
    "51 levels": (nested(50), 1, "at most 50 levels", "flatten"),
    "3000 brackets": (nested(3000), 1, "at most 50 levels", "flatten"),
    "3000 open brackets": ("[" * 3000, 1, "at most 50 levels", "flatten"),
    "3000 open braces": ("{" * 3000, 1, "expected", ""),
    "3000 dashes": ("- " * 3000, 1, "at most 50 levels", "flatten"),
    "3000 questions": ("? " * 3000, 1, "expected a word as key", "quotes"),
    "3000 keys": ("a: {" * 3000, 1, "at most 50 levels", "flatten"),
    "tab indentation": ("a:\n\tb: 1\n", 2, "expected YAML", "spaces, not with tabs"),
    "colon in value": ("a: b: c\n", 1, "expected YAML", "needs quotes"),
    "other column": ("ssh:\n  user: me\n    port: 22\n", 3, "expected YAML", "begin in one column"),
    "at sign": ("a:\n  - @lab\n", 2, "expected YAML", "needs quotes"),
    "open quote": ("a: 'x\n\n", 3, "got text without its closing quote", "begins on line 1"),
    "open bracket": ("a: [1,\n", 2, "got the end in place of a value", "close every bracket"),
    "open bracket above": ("a: [1\nb: 2\n", 2, "got ':' in place of ',' or ']'", "on line 1"),
    "bad indentation": ("a:\n    b: 1\n  c: 2\n", 3, "belongs to no list", "begin in one column"),
    "no colon": ("a: 1\nTOKEN=x\nb: 2\n", 2, "got a line without ': '", "KEY: VALUE"),
    "text behind a quote": ("a: 'b' c\n", 1, "belongs to no list", "quotes around all of it"),
    "unknown escape": ('a: "\\q"\n', 1, "got \\ with 'q' in double quotes", "single quotes"),
    "control character": (
        "a: 1\nb: \x1b[2J\n",
        2,
        "expected text, got the control character '\\x1b'",
        "remove it",
    ),
    "NUL": ("a: \0\n", 1, "the control character '\\x00'", "remove it"),
    "list as key": ("[a, b]: 1\n", 1, "expected a word as key", "quotes"),
    "alias as key": ("a: &a x\n*a : 1\n", 2, "expected a word as key", "quotes"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "expected one document", "'---'"),
    "impossible escape": ('a: "\\Uffffffff"\n', None, "expected YAML", ""),
    "half a character": (
        'a: "\\ud83d"\n',
        1,
        "expected text, got half of a surrogate pair",
        "other half",
    ),
    "half a character in a key": (
        '"\\udc00": 1\n',
        1,
        "expected text, got half of a surrogate pair",
        "other half",
    ),
    "bad directive": ("%YAML 9.1\n---\na: 1\n", 1, "expected YAML", ""),
    "a comment alone": ("# nothing\n", None, "expected some content, got an empty file", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_yaml_is_refused_with_file_line_and_remedy(case: str) -> None:
    text, line, message, hint = BAD[case]
    with pytest.raises(ConfigError) as caught:
        loads(text, "lab.yaml")
    error = caught.value
    assert error.where == (f"lab.yaml:{line}" if line else "lab.yaml")
    assert message in error.message
    assert hint in error.hint
    assert (error.kind, error.exit_code) == ("config_invalid", 2)
    assert len(str(error)) < 500
    assert str(error).isprintable()


def test_what_the_limits_allow_is_read() -> None:
    assert loads("a: &a 1\nb:\n" + "  - *a\n" * 100, "x").value["b"] == [1] * 100
    assert loads(nested(49), "x").value
    assert len(loads("\n".join(f"k{n}: {n}" for n in range(20_000)), "x").value) == 20_000


@pytest.mark.parametrize(
    "text", ["[" * (1 << 20), "a: " * 300_000, "- " * 500_000, "x" * (1 << 20), "&a " * 300_000]
)
def test_a_hostile_mebibyte_is_answered_in_time(text: str) -> None:
    with suppress(ConfigError):
        loads(text[: 1 << 20], "x")


def test_a_file_is_read_with_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes("\ufeffname: é\r\n".encode())
    assert load(path).value == {"name": "é"}
    assert load(path).source == str(path)


def missing(path: Path) -> None:
    pass


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.mark.parametrize(
    ("make", "where", "message"),
    [
        (missing, "", "expected a file, found none"),
        (lambda path: path.mkdir(), "", "expected a file, got a directory"),
        (pipe, "", "expected a regular file"),
        (listener, "", "expected a regular file"),
        (lambda path: path.write_bytes(b""), "", "got an empty file"),
        (lambda path: path.write_bytes(b" \n\n"), "", "got an empty file"),
        (
            lambda path: path.write_bytes(b"a: 1\nb: \xff\n"),
            ":2",
            "expected UTF-8 text, got byte 0xff",
        ),
        (
            lambda path: path.write_bytes("a: 1".encode("utf-16")),
            ":1",
            "expected UTF-8 text, got byte 0xff",
        ),
        (
            lambda path: path.write_bytes(b"a: \xed\xa0\x80"),
            ":1",
            "expected UTF-8 text, got byte 0xed",
        ),
        (
            lambda path: path.write_bytes(b"#" * ((1 << 20) + 1)),
            "",
            "expected at most 1 MiB, got more",
        ),
        (lambda path: path.symlink_to(path), "", "cannot be read"),
        (lambda path: path.symlink_to(path.parent / "gone"), "", "expected a file, found none"),
    ],
)
def test_what_is_no_readable_text_file_is_refused(
    tmp_path: Path, make: Any, where: str, message: str
) -> None:
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.where == f"{path}{where}"
    assert message in caught.value.message


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read|found none"):
        read_text(Path("a\0b"))


def test_too_much_text_is_refused_also_where_there_is_no_file() -> None:
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        loads("é" * (1 << 19) + "é", "x")


TOKENS = [
    "- ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "? ",
    ": ",
    "'",
    '"',
    "|\n",
    "#",
    "---\n",
    "\t",
    "%",
    "\\x",
]
YAMLISH = st.lists(
    st.sampled_from([*TOKENS, "a", "b: ", "&x ", "*x", "!t ", "1e3", "<<"]), max_size=40
).map("".join)


@settings(deadline=None, max_examples=examples(400))
@given(st.one_of(YAMLISH, st.text(max_size=60)))
def test_any_text_is_a_document_or_refused_with_its_source(text: str) -> None:
    try:
        loads(text, "fuzz.yaml")
    except ConfigError as error:
        assert error.where.startswith("fuzz.yaml")


@settings(deadline=None, max_examples=examples(400))
@given(st.one_of(YAMLISH, st.text(max_size=60)))
def test_the_quick_parser_reads_what_the_other_one_reads(text: str) -> None:
    assert read_with(yamlfile._QUICK, text) == read_with(None, text)


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "templates").glob("*/*.yaml")), ids=lambda path: path.parent.name
)
def test_the_quick_parser_reads_every_folder_as_the_other_one_does(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert read_with(yamlfile._QUICK, text) == read_with(None, text)


def read_with(quick: Any, text: str) -> Document | str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yamlfile, "_QUICK", quick)
        try:
            return loads(text, "fuzz.yaml")
        except ConfigError as error:
            return str(error)


@settings(deadline=None, max_examples=examples(100))
@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_refused_with_their_source(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    try:
        load(path)
    except ConfigError as error:
        assert error.where.startswith(str(path))


def test_a_part_of_a_document_names_the_places_of_its_file() -> None:
    document = loads(
        "stages:\n  - name: a\n    choices:\n      nodes: [1,\n        9]\n", "suite.yaml"
    )
    part = document.part(("stages", 0, "choices"))
    assert part.value == {"nodes": [1, 9]}
    assert (
        part.where(("nodes", 1))
        == "suite.yaml:5: stages[0].choices.nodes[1]"
        == part.part(("nodes",)).where((1,))
    )
    assert (
        document.where() == "suite.yaml:1"
        and document.where(("stages", 0, "nmae")) == "suite.yaml:2: stages[0].nmae"
    )


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**17), 10**17),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES)
def test_json_is_read_as_itself(value: Any) -> None:
    import json

    assert loads(json.dumps(value), "x").value == value
