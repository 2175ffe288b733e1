"""Inventories that stand on others: whose variables win, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, Faults, OrchError
from orchestrator.inventory.read import open_inventory

BASE = """\
schema: 1
defaults: {env: {A: base, B: base}, gpus: 2}
groups: {pair: [n1, n2]}
hosts:
  "n[1-3]": {address: "10.0.0.[1-3]"}
secrets: [B]
"""


def written(folder: Path, text: str, name: str = "over.yaml") -> str:
    (folder / "cluster.yaml").write_text(BASE)
    (folder / name).write_text(text)
    return str(folder / name)


def test_variables_go_over_those_of_the_hosts_named_and_all_else_is_the_base(
    tmp_path: Path,
) -> None:
    text = 'schema: 1\nbase: cluster.yaml\nhosts:\n  "@pair": {env: {A: pair, C: pair}}\n  n2: {env: {C: n2}}\n'
    found = open_inventory(written(tmp_path, text))
    assert [dict(host.env) for host in found.hosts] == [
        {"A": "pair", "B": "base", "C": "pair"}, {"A": "pair", "B": "base", "C": "n2"}, {"A": "base", "B": "base"},
    ]  # fmt: skip
    base = open_inventory(str(tmp_path / "cluster.yaml"))
    assert [(host.name, host.address, host.gpus) for host in found.hosts] == [
        (h.name, h.address, h.gpus) for h in base.hosts
    ]
    assert (found.groups, found.secrets) == (base.groups, ("B",))


def test_devices_slots_and_facts_of_a_host_go_over_those_of_the_base(tmp_path: Path) -> None:
    hosts = 'hosts: {n1: {gpus: 1, vars: {cuda_visible_devices: "1"}}, n2: {gpus: 0, slots: 4}}'
    found = open_inventory(written(tmp_path, f"schema: 1\nbase: cluster.yaml\n{hosts}\n"))
    seen = [(host.gpus, host.slots, dict(host.vars), dict(host.env)) for host in found.hosts]
    env = {"A": "base", "B": "base"}
    assert seen == [(1, 1, {"cuda_visible_devices": "1"}, env), (0, 4, {}, env), (2, 1, {}, env)]


def test_what_the_base_hides_by_pattern_and_what_looks_like_a_secret_is_hidden_in_what_is_laid_over_it(
    tmp_path: Path,
) -> None:
    text = "schema: 1\nbase: cluster.yaml\nhosts: {n1: {env: {B2: xxxx, C: x, HF_TOKEN: xxxx}}}\n"
    path = written(tmp_path, text)
    (tmp_path / "cluster.yaml").write_text(BASE.replace("[B]", "['B*']"))
    assert set(open_inventory(path).secrets) == {"B", "B2", "HF_TOKEN"}


def test_a_base_is_seen_from_its_file_may_have_any_format_and_a_base_of_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "hostfile").write_text("n1 slots=8\nn2 slots=8\n")
    (tmp_path / "deep" / "one.yaml").write_text(
        "schema: 1\nbase: ../hostfile\nhosts: {n1: {env: {A: one, B: one}}}\n"
    )
    (tmp_path / "two.yaml").write_text(
        "schema: 1\nbase: deep/one.yaml\nhosts: {'n[1-2]': {env: {A: two}}}\n"
    )
    found = open_inventory(str(tmp_path / "two.yaml"))
    assert [(host.gpus, dict(host.env)) for host in found.hosts] == [
        (8, {"A": "two", "B": "one"}),
        (8, {"A": "two"}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: 1\nbase: over.yaml\n", ["over.yaml:2: base: expected an inventory that does not extend this one"]),
        ("schema: 1\nbase: nowhere.yaml\n", ["over.yaml:2: base: expected an inventory, found no nowhere.yaml"]),
        ("schema: 1\nbase: [a]\n", ["over.yaml:2: base: expected the path of an inventory, got a list"]),
        ("schema: 2\nbase: cluster.yaml\n", ["over.yaml:1: schema: expected 1, got the number 2"]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n9: {env: {A: x}}}\n", ["over.yaml:3: hosts.n9: no host 'n9'", "n[1-3]"]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n1: {ssh: {user: n7}}}\n", ["over.yaml:3: hosts.n1.ssh: expected a known"]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n1: {address: -n7}}\n", ["over.yaml:3: hosts.n1.address: "]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n1: {env: {A: 4}}}\n", ["hosts.n1.env.A: expected text, got a number"]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n1: {env: {RANK: '4'}}}\n", ["a variable that the inventory may set"]),
        ("schema: 1\nbase: cluster.yaml\nhosts: {n1: {env: {ORCH_RUN_ID: x}}}\n", ["over.yaml:3", "does not begin with ORCH_"]),
        ("schema: 1\nbase: cluster.yaml\ngroups: {a: [n1]}\nhosts: []\n", ["over.yaml:3: groups", "over.yaml:4: hosts"]),
    ],
)  # fmt: skip
def test_what_is_no_overlay_is_refused_with_its_line(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(OrchError) as caught:
        open_inventory(written(tmp_path, text))
    assert isinstance(caught.value, ConfigError | Faults) and caught.value.exit_code == 2
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_ssh_files_are_relative_to_the_inventory_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.yaml").write_text(
        "schema: 1\ndefaults: {ssh: {key: keys/id, known_hosts: ~/known, config: none}}\nhosts: {a: {}}\n"
    )
    (tmp_path / "two.yaml").write_text("schema: 1\nbase: deep/one.yaml\nhosts: {}\n")
    monkeypatch.chdir(tmp_path)
    for source in ("deep/one.yaml", "two.yaml", str(tmp_path / "two.yaml")):
        ssh = open_inventory(source).hosts[0].ssh
        assert ssh.key == str(tmp_path / "deep/keys/id")
        assert (ssh.known_hosts, ssh.config) == ("~/known", "none")
