"""Secrets are taken out of text in whatever form a program prints them."""

from __future__ import annotations

import base64
import json
import pprint
import re
import subprocess
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.inventory import secrets as module
from orchestrator.inventory.secrets import SHOWN, hide_spans, redaction, significant
from tests.support.secret_forms import FORMS, INDENTS, remaining, wrapped

SECRETS = (
    "hunter2-and-more",
    'it\'s "odd" $(x)\\y&=%',
    "pässwörd→😀",
    "two\nlines of it",
    "-----BEGIN KEY-----",
    r"back\nslash\x41\101",
    "100%41%20or%2520",
    "hunter2-and%",
    "&amp;&#65;",
)
# Its ends are characters that every form keeps apart from the text around it.
secret_values = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=8, max_size=40
).map(lambda text: f"s3{text}9z")


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_in_every_form(secret: str, name: str) -> None:
    cleaned = redaction([secret]).text(f"before {FORMS[name](secret)}\nafter")
    assert SHOWN in cleaned and secret.strip() not in cleaned
    assert cleaned.startswith("before ") and cleaned.endswith("\nafter"), cleaned
    assert not remaining(cleaned, secret), cleaned


@given(secret_values, st.sampled_from(sorted(FORMS)), st.text(max_size=20), st.text(max_size=20))
def test_a_random_secret_in_a_random_form_at_a_random_place_never_passes(
    secret: str, name: str, before: str, after: str
) -> None:
    form = FORMS[name](secret)
    cleaned = redaction([secret]).text(f"{before} <{form}> {after}")
    core = re.escape(significant(secret).decode())
    assert SHOWN in cleaned and not re.search(core, significant(cleaned).decode()), cleaned


@given(secret_values, st.sampled_from(sorted(FORMS)), st.integers(1, 100), st.sampled_from(INDENTS))
def test_a_secret_is_found_however_its_lines_are_wrapped(
    secret: str, name: str, width: int, indent: str
) -> None:
    form = FORMS[name](secret)
    text = wrapped(f"{name}={form};", width, indent)
    cleaned = redaction([secret]).text(text)
    assert SHOWN in cleaned, (text, cleaned)


@given(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-_./", min_size=10, max_size=40),
    st.sampled_from(sorted(FORMS)),
    st.integers(1, 100),
    st.sampled_from(INDENTS),
)
def test_no_part_of_eight_characters_is_left(text: str, name: str, width: int, indent: str) -> None:
    secret = f"s3{text}9z"
    form = FORMS[name](secret)
    cleaned = redaction([secret]).text(wrapped(f"x {form} y", width, indent))
    assert SHOWN in cleaned and not remaining(cleaned, secret, indent), cleaned


@pytest.mark.parametrize("indent", ["", "[1,0]<stdout>:"])
@pytest.mark.parametrize(
    "secret", ["hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789", "back\\nslash\\x41\\101u b", "b" * 30]
)
@pytest.mark.parametrize("width", [1, 20, 80])
def test_a_literal_in_parts_is_found_whole_and_in_a_stream(
    secret: str, width: int, indent: str
) -> None:
    clean = redaction([secret])
    text = pprint.pformat(
        {b"environment": {b"a": secret.encode() * 3, "b": [secret.encode()]}}, width=width
    )
    data = text.replace("\n", "\n" + indent).encode()
    assert not remaining(clean.data(data).decode(), secret, indent) and clean.data(data).startswith(
        b"{b'environment'"
    )
    for size in (1, 2, 7, 64):
        assert b"".join(
            clean.stream(data[at : at + size] for at in range(0, len(data), size))
        ) == clean.data(data)


@given(
    secret_values,
    st.sampled_from(sorted(FORMS)),
    st.lists(st.integers(1, 30), max_size=20),
    st.integers(1, 60),
)
def test_a_stream_in_any_pieces_gives_what_the_whole_gives(
    secret: str, name: str, sizes: list[int], width: int
) -> None:
    clean = redaction([secret])
    data = f"one\n{wrapped(FORMS[name](secret), width, '')}\ntwo three {secret}".encode()
    pieces, position = [], 0
    for size in sizes:
        pieces.append(data[position : position + size])
        position += size
    assert b"".join(clean.stream([*pieces, data[position:]])) == clean.data(data)


def test_a_stream_holds_nothing_back_that_cannot_be_a_secret() -> None:
    stream = redaction(["hunter2-and-more"]).stream(
        [b"step=1\n", b"step=2 hun", b"ger\n", b"hunter2-", b"and-more\n"]
    )
    assert list(stream) == [b"step=1\n", b"step=2 ", b"hunger\n", SHOWN.encode() + b"\n"]


@given(secret_values, st.integers(0, 600), st.integers(0, 600))
def test_a_secret_over_the_edge_of_a_block_is_found(secret: str, before: int, after: int) -> None:
    size = module._BLOCK
    data = b"." * (size - before) + secret.encode() + b"." * after
    assert redaction([secret]).data(data).count(SHOWN.encode()) == 1


def test_a_shell_and_the_forms_here_agree() -> None:
    """What bash prints by itself, in the locale of most nodes."""
    for secret in SECRETS:
        script = 'printf "%q\\n" "$S"; export -p | grep S=; set -x; : "$S"'
        shown = subprocess.run(
            ["bash", "-c", script],
            env={"S": secret, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        )
        for output in (shown.stdout, shown.stderr):
            assert SHOWN.encode() in (cleaned := redaction([secret]).data(output)), output
            assert not remaining(cleaned.decode("utf-8", "replace"), secret)


def test_json_values_are_cleaned_however_deep_and_keep_their_shape() -> None:
    clean = redaction(["hunter2-and-more"])
    value = {
        "a": ["hunter2-and-more", 1, None, {"b hunter2-and-more": "x hunter2-and-more"}],
        "c": 2.5,
        "d": True,
    }
    assert clean.value(value) == {
        "a": [SHOWN, 1, None, {f"b {SHOWN}": f"x {SHOWN}"}],
        "c": 2.5,
        "d": True,
    }


def test_the_words_of_a_protocol_are_kept_even_if_one_of_them_is_a_secret() -> None:
    assert redaction(["error"]).value({"error": "an error", "event": "error"}) == {
        "error": f"an {SHOWN}",
        "event": "error",
    }


@given(secret_values)
def test_json_stays_json(secret: str) -> None:
    text = json.dumps({"a": f"x {secret} y", "b": [secret]})
    assert set(json.loads(redaction([secret]).text(text))) == {"a", "b"}


@pytest.mark.parametrize("secret", ["minio", "pw-12", "12345678", "abc/123"])
def test_a_short_value_is_hidden_where_it_stands_alone(secret: str) -> None:
    clean = redaction([secret])
    for form in (
        secret,
        repr(secret),
        json.dumps({"a": json.dumps(secret)}),
        f"key={secret}&",
        quote(secret, safe=""),
    ):
        assert SHOWN in clean.text(form) and secret not in clean.text(form)
    assert clean.text(f"x{secret} {secret}9 0.{secret}0") == f"x{secret} {secret}9 0.{secret}0"
    assert clean.text(base64.b64encode(secret.encode()).decode()).rstrip("=") == SHOWN


def test_a_short_value_is_not_put_together_from_two_words() -> None:
    assert redaction(["step12"]).text("step 12, step\n12") == "step 12, step\n12"


@pytest.mark.parametrize(
    "value", ["1", "0", "true", "False", "off", "120", "", " ", "\n", "abc", '"a"']
)
def test_switches_and_values_too_short_to_be_hidden_are_left_as_they_are(value: str) -> None:
    text = "step=17 code 1, is true, False, off: 120 abc 'a'"
    assert redaction([value]).text(text) == text


def test_without_secrets_nothing_changes() -> None:
    assert (
        redaction([]).value({"a": "as it is"}) == {"a": "as it is"}
        and redaction([]).data(b"\xff") == b"\xff"
    )


def test_of_values_in_each_other_the_longer_goes_first() -> None:
    assert (
        redaction(["abcdefgh", "abcdefghijklmnop"]).text("abcdefghijklmnop abcdefgh")
        == f"{SHOWN} {SHOWN}"
    )


def test_lines_of_a_secret_are_secret_too() -> None:
    clean = redaction(["-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\n-----END KEY-----"])
    assert clean.text("2026 MIIEpAIBAAKCAQEA7 .") == f"2026 {SHOWN} ."


@given(st.binary(max_size=300), st.text(min_size=8, max_size=20))
def test_any_bytes_are_accepted_and_kept_where_there_is_no_secret(data: bytes, secret: str) -> None:
    assume(len(significant(secret)) >= 8)
    clean = redaction([secret])
    spans = clean.spans(data)
    assert all(start < stop for start, stop in spans) and spans == sorted(spans)
    assert hide_spans(data, spans) == clean.data(data) and (spans or clean.data(data) == data)


@pytest.mark.parametrize("secret", SECRETS[:2])
def test_no_part_of_a_secret_is_left_in_a_piece_of_a_growing_log_wherever_the_piece_is_cut(
    secret: str,
) -> None:
    filter_ = redaction([secret])
    for form in (secret, FORMS["json"](secret), wrapped(f"key = {secret}", 7, INDENTS[0])):
        before = b"step 1 done\n" * (filter_.reach // 12 + 1)
        log = before + form.encode() + b"\nstep 2 done\n"
        for cut in range(len(before) - 2, len(log), 3):
            whole = filter_.within(log, cut).decode("utf-8", "replace")
            growing = filter_.within(log[:cut], filter_.reach).decode("utf-8", "replace")
            assert remaining(whole, form) == remaining(growing, form) == set(), (form, cut)
        assert filter_.within(log, len(before)).endswith(b"\nstep 2 done\n")
