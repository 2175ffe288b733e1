"""Secrets are taken out of text in whatever form they come back."""

from __future__ import annotations

import base64
import doctest
import json
import shlex
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.inventory import secrets as module
from orchestrator.inventory.secrets import SHOWN, redaction

SECRETS = (
    "hunter2-and-more",
    'it\'s "odd" $(x)\\y&=%',
    "pässwörd→😀",
    "two\nlines of it",
    " spaces around ",
    "-----BEGIN KEY-----",
)


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_in_every_form(secret: str) -> None:
    data = secret.encode()
    forms = {
        "plain": f"<{secret}>",
        "quoted": shlex.join(["run", secret, "more"]),
        "json": json.dumps({"a": f"x{secret}y"}),
        "json, unicode": json.dumps({"a": f"x{secret}y"}, ensure_ascii=False),
        "repr": repr({"a": secret}),
        "bytes": repr(b"x" + data),
        "url": "https://host/?a=" + quote(secret, safe=""),
        "form": "a=" + quote_plus(secret),
        "lower url": quote(secret, safe="").lower() if secret.isascii() and secret.islower() else quote(secret, safe=""),
        "hex": data.hex(),
        **{f"base64 after {n}": base64.b64encode(b"u" * n + data + b"zz").decode() for n in range(4)},
        **{f"urlsafe after {n}": base64.urlsafe_b64encode(b"u" * n + data).decode() for n in range(4)},
    }
    clean = redaction([secret])
    for name, text in forms.items():
        found = clean.text(text)
        assert SHOWN in found and secret.strip() not in found, f"{name}: {found}"
        if "base64" in name or "urlsafe" in name:
            assert len(found.replace(SHOWN, "")) <= 12, f"{name}: {found}"


def test_json_values_are_cleaned_however_deep_and_keep_their_shape() -> None:
    clean = redaction(["hunter2-and-more"])
    value = {"a": ["hunter2-and-more", 1, None, {"b hunter2-and-more": "x hunter2-and-more"}], "c": 2.5, "d": True}
    assert clean.value(value) == {"a": [SHOWN, 1, None, {f"b {SHOWN}": f"x {SHOWN}"}], "c": 2.5, "d": True}


def test_short_values_only_go_where_they_stand_alone_and_empty_ones_nowhere() -> None:
    assert redaction(["7"]).text("step=17 code 7") == f"step=17 code {SHOWN}"
    assert redaction(["", " ", "\n"]).text("as it is") == "as it is"
    assert redaction([]).value({"a": "as it is"}) == {"a": "as it is"}


def test_of_values_in_each_other_the_longer_goes_first() -> None:
    assert redaction(["abcd", "abcdefgh"]).text("abcdefgh abcd") == f"{SHOWN} {SHOWN}"


@given(st.text(min_size=4, max_size=40).filter(lambda text: text.strip()), st.text(max_size=20), st.text(max_size=20))
def test_any_secret_goes_from_any_text(secret: str, before: str, after: str) -> None:
    found = redaction([secret]).text(before + secret + after)
    assert SHOWN in found and (secret not in found or secret in SHOWN or secret in before + SHOWN or secret in SHOWN + after)
