"""Variables that an inventory keeps secret: by what they are known, and that nothing said of an
inventory quotes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.inventory.read import open_inventory
from orchestrator.record.bench_parts import PlannedWith
from tests.support.inventories import SECRET, SECRET_NAMES, faults_of, read

TOP = "schema: 1\nhosts: {a: {address: 10.0.0.1}}\n"
ENV = TOP + "defaults:\n  env:\n    HF_TOKEN"


def test_secrets_are_named_one_by_one_by_pattern_and_by_what_a_name_looks_like() -> None:
    env = "{API_TOKEN: a, hf_secret: b, AWS_ACCESS_KEY_ID: c, WANDB_USER: d, WANDB_URL: e, K1: f, k1: g, NCCL_DEBUG: INFO}"
    plain = "MAX_TOKENS: '512', TOKENIZERS_PARALLELISM: 'false', NCCL_SOCKET_IFNAME: ib0"
    text = f"schema: 1\nhosts:\n  a: {{env: {env}}}\n  b: {{env: {{DB: h, MY_PASSWORD: i, {plain}}}}}\n"
    looks = ("API_TOKEN", "hf_secret", "AWS_ACCESS_KEY_ID", "MY_PASSWORD")
    assert read(text).secrets == looks
    assert set(read(text + "secrets: ['WANDB_?RL', 'K[0-9]', '*B', '*_TOKEN']\n").secrets) == {
        *looks,
        "WANDB_URL",
        "K1",
        "DB",
    }
    assert set(read(text + "secrets: ['*']\n").secrets) == {
        name for host in read(text).hosts for name in host.env
    }


def test_a_pattern_that_no_variable_matches_is_refused_as_a_misspelt_name_is() -> None:
    text = "schema: 1\nsecrets: ['*_TOKEM', '*_token']\nhosts: {a: {env: {HF_TOKEN: hunter2}}}\n"
    found = faults_of(lambda: read(text))
    assert len(found) == 2 and all(
        "expected the name of a variable, got a text." in each for each in found
    )
    assert "did you mean 'HF_TOKEN'?" in found[0]


def test_a_value_of_env_is_never_shown() -> None:
    text = 'schema: 1\nhosts: {a: {env: {TOKEN: 8641975, "S S": hunter2, B: [hunter2], C: "hunter2\\0"}, vars: 5}}'
    found = faults_of(lambda: read(text))
    assert len(found) == 5
    assert not any("hunter2" in fault or "8641975" in fault for fault in found)


@pytest.mark.parametrize(
    "text",
    [
        f"{TOP}defaults: {{env: HF_TOKEN={SECRET}}}\n",
        f"{TOP}defaults: {{env: {{HF_TOKEN={SECRET}: x}}}}\n",
        f"{TOP}defaults: {{env: {{HF_TOKEN={SECRET}}}}}\n",
        f"{TOP}defaults: {{env: {{HF_TOKEN: [{SECRET}]}}}}\n",
        f"{TOP}defaults: {{HF_TOKEN={SECRET}: x}}\n",
        f"{TOP}defaults: HF_TOKEN={SECRET}\n",
        f"{TOP}HF_TOKEN={SECRET}: x\n",
        f"{TOP}secrets: [{SECRET}]\n",
        f"{TOP}secrets: {SECRET}\n",
        f"{ENV} {SECRET}\n",
        *(f"{ENV}: {start}{SECRET} x\n" for start in '*!@%`"'),
        f"{ENV}: {SECRET}: x\n",
        f"schema: 1\nhosts: {{a: HF_TOKEN={SECRET}}}\n",
        f"schema: 1\nhosts: HF_TOKEN={SECRET}\n",
        f"[g]\na HF_TOKEN {SECRET}\n",
        f"[g:vars]\nHF_TOKEN {SECRET}\n",
        f"[g]\na env='{{HF_TOKEN: {SECRET}}}'\n",
        f"a slots=2 env=HF_TOKEN={SECRET}\n",
        f"a slots=2 {SECRET}\n",
        f"all: {{hosts: {{a: HF_TOKEN={SECRET}}}}}\n",
        f"all: {{hosts: HF_TOKEN={SECRET}}}\n",
        f"all: {{children: {{HF_TOKEN={SECRET}: {{hosts: a}}}}}}\n",
    ],
)
def test_nothing_said_of_an_inventory_quotes_what_may_be_a_secret(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "hosts.yaml"
    for source in (text, text.replace("schema: 1\n", "schema: 1\nbase: other.yaml\n")):
        path.write_text(source)
        try:
            said: Sequence[str] = open_inventory(str(path)).notes
            assert said
        except OrchError:
            said = faults_of(lambda: open_inventory(str(path)))
        assert not [words for words in said if "hunter2" in words]


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize(
    "form",
    [
        "schema: 1\ndefaults: {{vars: {{NAME: {secret}}}}}\nhosts: {{a: {{gpus: 1}}}}\n",
        "schema: 1\nhosts: {{a: {{gpus: 1, vars: {{store: {{NAME: {secret}}}}}}}}}\n",
    ],
)
def test_no_variable_that_may_be_secret_is_kept_with_a_bench(name: str, form: str) -> None:
    inventory = read(form.replace("NAME", name).format(secret=SECRET))
    written = repr(PlannedWith.of(inventory.hosts, inventory.secrets, {})) + repr(inventory)
    assert SECRET not in written
    assert any("not read: " in note for note in inventory.notes) or name.startswith("ansible_")


def test_a_key_and_a_url_with_a_password_are_secret_whatever_their_name() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY----- abcdefgh"
    env = f"{{PROXY: 'http://amy:{SECRET}@p:3128'}}"
    variables = f"{{one: 's3://x:{SECRET}@s', two: '{key}'}}"
    text = f"schema: 1\nhosts: {{a: {{env: {env}, vars: {variables}}}}}\n"
    inventory = read(text)
    assert inventory.secrets == ("PROXY",) and dict(inventory.hosts[0].vars) == {}
    assert inventory.notes[0].startswith("not read: one, two (")


def test_an_overlay_keeps_no_secret_either(tmp_path: Path) -> None:
    base = f"schema: 1\nhosts: {{a: {{gpus: 1, vars: {{admin_password: {SECRET}}}}}}}\n"
    (tmp_path / "base.yaml").write_text(base)
    path = tmp_path / "over.yaml"
    path.write_text(
        f"schema: 1\nbase: base.yaml\nhosts: {{a: {{vars: {{db_pass: {SECRET}, data_dir: /d}}}}}}\n"
    )
    inventory = open_inventory(str(path))
    assert SECRET not in repr(inventory) and dict(inventory.hosts[0].vars) == {"data_dir": "/d"}
    assert [note.split(" (")[0] for note in inventory.notes] == [
        "not read: admin_password",
        "not read: db_pass",
    ]


def test_what_an_earlier_version_kept_is_no_difference_and_is_not_written_again() -> None:
    now = PlannedWith.of(
        read("schema: 1\nhosts: {a: {gpus: 1, vars: {rack: 3, admin_password: x}}}\n").hosts, (), {}
    )
    before = PlannedWith(
        {"a": {**now.hosts["a"], "vars": {"rack": 3, "admin_password": SECRET}}}, {}
    )
    assert before.without(()) == now


def test_switches_and_names_that_only_look_alike_stay_variables() -> None:
    names = (
        "tokenizer: a, max_tokens: 512, passwordless: true, bypass: 1, key_name: k, "
        "rdma_network: 10.0.0.0, public_key: ssh-rsa"
    )
    assert len(read(f"schema: 1\nhosts: {{a: {{vars: {{{names}}}}}}}\n").hosts[0].vars) == 7


@pytest.mark.parametrize("value", ["abc", "'a b c'", "\"'abc'\"", "x"])
def test_a_secret_that_is_too_short_to_be_hidden_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        f"schema: 1\ndefaults: {{env: {{HF_TOKEN: {value}, A: x}}}}\nhosts: {{'n[1-3]': {{}}}}\n"
    )
    (fault,) = faults_of(lambda: open_inventory(str(path)))
    assert (
        fault.startswith(
            f"{path}: env.HF_TOKEN of n[1-3]: expected a secret of at least 4 characters"
        )
        and "abc" not in fault
    )


@pytest.mark.parametrize("value", ["abcd", "'1'", "'off'", "'True'", "''", "'120'"])
def test_switches_may_have_the_name_of_a_secret(tmp_path: Path, value: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        f"schema: 1\ndefaults: {{env: {{HF_HUB_DISABLE_IMPLICIT_TOKEN: {value}}}}}\nhosts: {{n1: {{}}}}\n"
    )
    assert open_inventory(str(path)).secrets == ("HF_HUB_DISABLE_IMPLICIT_TOKEN",)
