"""Inventories in every format: what good ones mean, and that all faults of a bad one are found, placed and explained.

A file in ``data/inventories/good`` has its meaning beside it as JSON, a file in ``bad`` the whole text of its refusal.
"""

from __future__ import annotations

import doctest
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, Faults, OrchError
from orchestrator.inventory import ansible, machine_files, ssh_args
from orchestrator.inventory import formats as inventory_formats
from orchestrator.inventory.formats import parse_text, recognise
from orchestrator.inventory.hosts import Inventory, SshSettings
from orchestrator.inventory.hostset import expand
from orchestrator.inventory.machine_files import from_expression
from orchestrator.inventory.read import open_inventory
from orchestrator.inventory.schema import parse
from tests.support.examples import examples

DATA = Path(__file__).parents[1] / "data" / "inventories"
GOOD = sorted(path.name for path in (DATA / "good").iterdir() if path.suffix != ".json")
BAD = sorted(path.name for path in (DATA / "bad").iterdir() if path.suffix != ".expected")
REFERENCE = Path(__file__).parents[2] / "inventory" / "cluster.yaml"


def read(text: str, source: str = "lab.yaml") -> Inventory:
    return parse_text(text, source, yamlfile.loads)


def faults_of(make: Callable[[], object]) -> list[str]:
    with pytest.raises(OrchError) as caught:
        make()
    error = caught.value
    assert (error.exit_code, error.kind) == (2, "config_invalid")
    return [str(each) for each in (error.errors if isinstance(error, Faults) else [error])]


def plain(inventory: Inventory) -> dict[str, Any]:
    """What an inventory says beyond defaults, ready for JSON."""
    unset = asdict(SshSettings())
    hosts = {}
    for host in inventory.hosts:
        ssh = {key: value for key, value in asdict(host.ssh).items() if value != unset[key]}
        values = {"ssh": ssh, "env": dict(host.env), "vars": dict(host.vars), "expect": dict(host.expect)}
        basics = {"address": host.address, "gpus": host.gpus, "slots": host.slots}
        hosts[host.name] = basics | {key: value for key, value in values.items() if value}
    groups = {name: list(members) for name, members in inventory.groups.items()}
    return {"hosts": hosts, "groups": groups, "secrets": list(inventory.secrets)}


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(inventory_formats).failed == 0
    assert doctest.testmod(ssh_args).failed == 0
    assert doctest.testmod(machine_files).failed == 0
    assert doctest.testmod(ansible).failed == 0


@pytest.mark.parametrize("name", GOOD)
def test_a_good_inventory_means_what_stands_beside_it(name: str) -> None:
    path = DATA / "good" / name
    assert plain(read(path.read_text(), name)) == json.loads(path.with_name(f"{name}.json").read_text())


def test_secrets_are_named_one_by_one_by_pattern_and_by_what_a_name_looks_like() -> None:
    env = "{API_TOKEN: a, hf_secret: b, AWS_ACCESS_KEY_ID: c, WANDB_USER: d, WANDB_URL: e, K1: f, k1: g, NCCL_DEBUG: INFO}"
    plain = "MAX_TOKENS: '512', TOKENIZERS_PARALLELISM: 'false', NCCL_SOCKET_IFNAME: ib0"
    text = f"schema: 1\nhosts:\n  a: {{env: {env}}}\n  b: {{env: {{DB: h, MY_PASSWORD: i, {plain}}}}}\n"
    looks = ("API_TOKEN", "hf_secret", "AWS_ACCESS_KEY_ID", "MY_PASSWORD")
    assert read(text).secrets == looks
    assert set(read(text + "secrets: ['WANDB_?RL', 'K[0-9]', '*B', '*_TOKEN']\n").secrets) == {*looks, "WANDB_URL", "K1", "DB"}
    assert set(read(text + "secrets: ['*']\n").secrets) == {name for host in read(text).hosts for name in host.env}


@pytest.mark.parametrize("path", ["/data", "~/images", "~bench/images", "~"])
def test_a_data_set_lies_at_the_root_or_in_a_home(path: str) -> None:
    assert read(f"schema: 1\nhosts: {{a: {{vars: {{data_dir: '{path}'}}}}}}\n").hosts[0].vars["data_dir"] == path


def test_names_that_look_like_secrets_are_secrets_in_other_formats_too() -> None:
    found = parse_text("all:\n  hosts:\n    a: {env: {HF_TOKEN: x, PLAIN: y}}\n", "hosts.yml", yamlfile.loads)
    assert found.secrets == ("HF_TOKEN",)


def test_a_pattern_that_no_variable_matches_is_refused_as_a_misspelt_name_is() -> None:
    text = "schema: 1\nsecrets: ['*_TOKEM', '*_token']\nhosts: {a: {env: {HF_TOKEN: hunter2}}}\n"
    found = faults_of(lambda: read(text))
    assert len(found) == 2 and all("expected the name of a variable, got a text." in each for each in found)
    assert "did you mean 'HF_TOKEN'?" in found[0]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_inventory_is_refused_with_all_its_faults_together(name: str) -> None:
    path = DATA / "bad" / name
    found = faults_of(lambda: read(path.read_text(), name))
    assert found == path.with_name(f"{name}.expected").read_text().splitlines()


@pytest.mark.parametrize("name", [name for name in BAD if name.endswith(".yaml")])
def test_a_fault_names_the_line_that_holds_its_key(name: str) -> None:
    """Independent of the golden text: the last part of each key path is written on the line that the fault names."""
    lines = (DATA / "bad" / name).read_text().splitlines()
    for fault in faults_of(lambda: read((DATA / "bad" / name).read_text(), name)):
        match = re.match(rf"{re.escape(name)}:(\d+): (\S+): expected", fault)
        key = match[2].split(".")[-1] if match else ""
        if match and not key.isdecimal() and key not in ("schema", "", "''") and "\\" not in key:
            assert key in lines[int(match[1]) - 1]


def test_every_fault_says_what_was_expected_and_what_came() -> None:
    for path in (DATA / "bad").glob("*.expected"):
        for line in path.read_text().splitlines():
            assert re.match(rf"{re.escape(path.stem)}(:\d+)?: (.+: )?expected .+, got .+", line), line


def test_the_reference_inventory_is_four_nodes_with_eight_gpus() -> None:
    inventory = read(REFERENCE.read_text(), str(REFERENCE))
    assert [(host.name, host.address, host.gpus) for host in inventory.hosts] == [
        (f"node{n}", f"10.11.0.{n + 1}", 8) for n in range(1, 5)
    ]
    assert {host.vars["interface"] for host in inventory.hosts} == {"ib0"}
    assert inventory.hosts[0].env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert inventory.hosts[0].ssh.host_keys == "strict"


def test_what_the_reference_inventory_comments_out_is_valid_too() -> None:
    text = re.sub(r"^(\s*)# (\w+: |node5: |secrets: )", r"\1\2", REFERENCE.read_text(), flags=re.MULTILINE)
    secrets = 'DB_URL: "x"\n    WANDB_USER: "y"'
    text = text.replace("hosts:  ", "hosts:\n ").replace("NCCL_DEBUG: INFO", f"NCCL_DEBUG: INFO\n    {secrets}")
    inventory = read(text)
    assert (len(inventory.hosts), inventory.secrets) == (5, ("DB_URL", "WANDB_USER"))
    assert inventory.hosts[4].ssh == SshSettings(
        user="bench",
        port=2222,
        key="~/.ssh/id_ed25519",
        jump="me@gate.example.org",
        config="~/.ssh/config",
        known_hosts="~/.ssh/known_hosts",
        connect_timeout_s=10,
    )
    assert (inventory.hosts[0].slots, inventory.hosts[0].vars["data_dir"]) == (1, "/data/imagenet")


def test_a_host_overrides_defaults_key_by_key() -> None:
    hosts = read((DATA / "good" / "ours.yaml").read_text()).hosts
    assert hosts[0].ssh == SshSettings(user="bench", key="~/.ssh/id_bench", port=2222, connect_timeout_s=2.5)
    assert dict(hosts[0].env) == {"NCCL_DEBUG": "WARN", "TOKEN": "abc"}
    assert dict(hosts[1].vars) == {"interface": "eth0", "data_dir": "/data", "racks": [1, 2]}


def test_ranges_of_name_and_address_expand_in_step_and_in_written_order() -> None:
    hosts = read('schema: 1\nhosts: {"gpu[01-03]": {address: "10.0.0.[3,1-2]"}}').hosts
    assert [(host.name, host.address) for host in hosts] == [
        ("gpu01", "10.0.0.3"),
        ("gpu02", "10.0.0.1"),
        ("gpu03", "10.0.0.2"),
    ]


NODE_IN_PARTS = unicodedata.normalize("NFD", "nodé")
ODD_HOSTS = {
    "300 bytes": (f'  "{"a" * 300}": {{address: h}}', "at most 128 bytes, got 300 bytes"),
    "again in capitals": ("  node1: {address: a}\n  Node1: {address: b}", "each host once, got 'Node1' again"),
    "again in another unicode form": (f"  nodé: {{address: a}}\n  {NODE_IN_PARTS}: {{address: b}}", "letters, digits"),
    "full width": ("  node1: {address: a}\n  ｎode1: {address: b}", "letters, digits"),
    "duplicate key": ("  a: {}\n  a: {}", "each key once, got 'a' again"),
    "too many": ('  "n[1-10001]": {}', "at most 10000 hosts, got 10001"),
    "too many together": ('  "n[1-9000]": {}\n  "m[1-9000]": {}', "at most 10000 hosts, got more"),
    "tag": ("  a: !!python/object/apply:os.system [id]", "expected no tags"),
    "3000 brackets": ("  a: " + "[" * 3000 + "]" * 3000, "at most 50 levels"),
    "tab": ("\ta: {}", "spaces, not with tabs"),
    "a name and another's address": ("  a: {address: b}\n  b: {address: c}", "got 'b', the address of 'a'"),
    "two on one machine": ("  a: {address: H}\n  b: {address: h., ssh: {port: 22}}", "one name per machine, got 'a' and 'b'"),
}


@pytest.mark.parametrize("case", ODD_HOSTS)
def test_an_odd_host_is_refused_with_its_line(case: str) -> None:
    body, message = ODD_HOSTS[case]
    found = faults_of(lambda: read(f"schema: 1\nhosts:\n{body}\n"))
    assert any(message in fault for fault in found)
    assert all(re.match(r"lab\.yaml(:\d+)?: ", fault) for fault in found)
    assert all(fault.isprintable() and len(fault) < 500 for fault in found)


def test_a_jump_host_may_be_a_pattern_of_the_ssh_configuration() -> None:
    assert read("schema: 1\nhosts: {a: {ssh: {jump: 'me@gate+inner:22'}}}").hosts[0].ssh.jump == "me@gate+inner:22"
    (fault,) = faults_of(lambda: read("schema: 1\nhosts: {a: {ssh: {jump: gate/inner}}}"))  # ssh refuses it, too
    assert "expected a jump host" in fault


def test_ten_thousand_hosts_are_read() -> None:
    assert len(read('schema: 1\nhosts: {"n[1-10000]": {}}').hosts) == 10_000


def test_one_machine_behind_two_ports_or_two_jump_hosts_is_two_hosts() -> None:
    text = "schema: 1\nhosts:\n  a: {address: h}\n  b: {address: h, ssh: {port: 23}}\n  c: {address: h, ssh: {jump: gate}}"
    assert len(read(text).hosts) == 3


def test_a_value_of_env_is_never_shown() -> None:
    text = 'schema: 1\nhosts: {a: {env: {TOKEN: 8641975, "S S": hunter2, B: [hunter2], C: "hunter2\\0"}, vars: 5}}'
    found = faults_of(lambda: read(text))
    assert len(found) == 5
    assert not any("hunter2" in fault or "8641975" in fault for fault in found)


def test_more_than_a_hundred_faults_are_counted() -> None:
    text = "schema: 1\nhosts:\n" + "".join(f"  n{n}: {{gpus: x}}\n" for n in range(150))
    found = faults_of(lambda: read(text))
    assert len(found) == 101
    assert "50 more faults" in found[-1]


def test_groups_hold_hosts_by_name_whatever_they_were_called_by() -> None:
    text = "schema: 1\ngroups: {x: [10.0.0.9, fd00::1], y: ['@x', b]}\nhosts: {a: {address: 10.0.0.9}, fd00::1: , b: }"
    assert dict(read(text).groups) == {"x": ("a", "fd00--1"), "y": ("a", "fd00--1", "b")}


def test_deeply_nested_groups_are_refused_not_followed() -> None:
    groups = "".join(f'  g{n}: "@g{n + 1}"\n' for n in range(2000))
    found = faults_of(lambda: read(f"schema: 1\nhosts: {{a: }}\ngroups:\n{groups}  g2000: a\n"))
    assert "at most 50 deep" in found[0]


@pytest.mark.parametrize(
    ("expression", "exclude", "names"),
    [
        ("", "", "node1 gpu01 gpu02 gpu03 10.11.0.9 fd00--9"),
        ("@all", "@lab", "gpu01 10.11.0.9 fd00--9"),
        ("gpu[02-03],node1", "", "node1 gpu02 gpu03"),
        ("10.11.1.1-2", "", "gpu02 gpu03"),
        ("10.11.0.2", "", "node1"),
        ("fd00::9", "", "fd00--9"),
        ("@both", "gpu01", "node1 gpu02 gpu03 10.11.0.9"),
    ],
)
def test_hosts_are_selected_by_name_address_and_group(expression: str, exclude: str, names: str) -> None:
    inventory = read((DATA / "good" / "ours.yaml").read_text())
    assert [host.name for host in inventory.select(expression, exclude)] == names.split()


def test_an_unknown_host_is_refused_with_the_nearest() -> None:
    inventory = read(REFERENCE.read_text(), "cluster.yaml")
    with pytest.raises(ConfigError) as caught:
        inventory.select("nod1")
    assert str(caught.value) == ("hosts 'nod1': no host 'nod1' in cluster.yaml. known hosts: node[1-4]; did you mean 'node1'?")


def test_an_address_of_two_hosts_selects_both() -> None:
    inventory = read("schema: 1\nhosts:\n  a: {address: h, ssh: {port: 1}}\n  b: {address: h, ssh: {port: 2}}")
    assert [host.name for host in inventory.select("h")] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("schema: 1\nhosts: {}\n", "orch"),
        ("# x\n\n---\nschema: 1\n", "orch"),
        ("hosts:\n  node1:\n", "orch"),
        ("'hosts': {}\n", "orch"),
        ('{"schema": 1, "hosts": {}}', "orch"),
        ('{\n  "hosts": {},\n  "schema": 1}', "orch"),
        ("- node1\n- node2\n", "orch"),
        ("\thosts:\n", "orch"),
        ("all:\n  hosts:\n    node1:\n", "ansible-yaml"),
        ("---\nlab:\n  hosts:\n", "ansible-yaml"),
        ('{"all": {"hosts": {"a": null}}}', "ansible-yaml"),
        ("[lab]\nnode1\n", "ansible-ini"),
        ("; x\n[lab:vars] # y\na=1\n", "ansible-ini"),
        ("node1 ansible_host=10.0.0.1\n", "ansible-ini"),
        ("n1\nnode[:3]\n", "ansible-ini"),
        ("db-[a:c:2]:2222\n", "ansible-ini"),
        ("[fd00::1]:2222\n", "hostfile"),
        ("node1 slots=4\n", "hostfile"),
        ("node1 slots=4 max_slots=8\n", "hostfile"),
        ("node1:8\nnode2:8\n", "hostfile"),
        ("node1:8,node2:8\n", "hostfile"),
        ("node1\nnode2 # x=1\n", "list"),
        ("gpu[01-04]\n", "list"),
        ("fd00::1\n", "list"),
        ("", "list"),
    ],
)
def test_a_format_is_recognised_by_its_text(text: str, kind: str) -> None:
    assert recognise(text) == kind


def test_all_of_ansible_inventories_merge_farther_groups_first() -> None:
    text = """
[far]
n
[near]
n
[top:children]
mid
[mid:children]
near
[all:vars]
a=all
b=all
c=all
d=all
e=all
[top:vars]
b=top
c=top
d=top
[mid:vars]
c=mid
d=mid
[near:vars]
d=near
ansible_ssh_user=near
[all:vars]
ansible_user=all
"""
    (host,) = read(text).hosts
    assert dict(host.vars) == {"a": "all", "b": "top", "c": "mid", "d": "near", "e": "all"}
    assert host.ssh.user == "near"


def test_an_encrypted_value_is_refused_only_where_it_decides_to_which_machine_a_connection_goes() -> None:
    text = "all:\n  hosts: {a: {ansible_user: root}}\n  vars:\n    %s: !vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      61\n"
    inventory = read(text % "data_dir")
    assert (dict(inventory.hosts[0].vars), inventory.notes) == ({}, ("not read: data_dir (an encrypted value)",))
    assert read(text % "ansible_user").hosts[0].ssh.user == "root"  # a nearer value takes its place
    (fault,) = faults_of(lambda: read(text % "ansible_host"))
    assert fault.startswith("lab.yaml:4: all.vars.ansible_host: expected a plain value, got an encrypted value.")


def test_an_encrypted_inventory_is_refused() -> None:
    (fault,) = faults_of(lambda: read("$ANSIBLE_VAULT;1.1;AES256\n6162\n"))
    assert fault.startswith("lab.yaml: expected an inventory, got one encrypted by Ansible Vault")


@pytest.mark.parametrize("more", ["regions: [eu-west-1]", "strict: false\ngroups: {gpu: \"'gpu' in name\"}", "hosts: {}"])
def test_settings_of_an_inventory_plugin_are_named_as_such_with_what_ansible_must_be_given(tmp_path: Path, more: str) -> None:
    (tmp_path / "cloud.yml").write_text(f"# of the cloud\nplugin: aws_ec2\n{more}\n")
    (tmp_path / "hosts").write_text("[gpu]\nn1\n")
    for source in (str(tmp_path / "cloud.yml"), str(tmp_path)):
        (fault,) = faults_of(partial(open_inventory, source))
        assert fault == (
            f"{tmp_path}/cloud.yml:2: plugin: expected groups of hosts, got the settings of Ansible's inventory plugin "
            f"'aws_ec2'. let Ansible ask it: ansible-inventory -i {source} --list > hosts.json, and --hosts hosts.json"
        )


LISTED = {"cluster": "cluster/hosts", "sites": "sites", "quoted": "quoted", "loose": "loose.yml"}


def jump_in(arguments: str) -> str | None:
    """The jump host in ssh arguments, by text alone: ``-J``, ``ProxyJump``, or the host and port of a ProxyCommand."""
    if match := re.search(r"(?:-J |ProxyJump=)(\S+)", arguments):
        return match[1]
    match = re.search(r"ProxyCommand=.* (\S+@[\w.]+) -p (\d+)", arguments)
    return f"{match[1]}:{match[2]}" if match else None


@pytest.mark.parametrize("name", LISTED)
def test_ansible_inventories_mean_what_ansible_inventory_prints(name: str) -> None:
    """``NAME.listed.json`` is what `ansible-inventory --list` of ansible-core 2.19 printed for the same files, decrypted."""
    listed = json.loads((DATA / "ansible" / f"{name}.listed.json").read_text())
    variables = listed.pop("_meta")["hostvars"]
    names = {host for group in listed.values() for host in group.get("hosts", ())}
    expected = {}
    for host in names:
        of_host = variables.get(host, {})
        if of_host.get("ansible_connection", "ssh") == "ssh":
            arguments = " ".join(of_host.get(f"ansible_ssh_{kind}_args", "") for kind in ("common", "extra"))
            port = of_host.get("ansible_port")
            expected[host] = (
                of_host.get("ansible_host", host), of_host.get("ansible_ssh_user", of_host.get("ansible_user")) or None,
                int(port) if port else None, of_host.get("ansible_ssh_private_key_file") or None, jump_in(arguments),
            )  # fmt: skip
    inventory = open_inventory(str(DATA / "ansible" / LISTED[name]))
    read_hosts = {host.name: (host.address, *(getattr(host.ssh, key) for key in ("user", "port", "key", "jump")))
                  for host in inventory.hosts}  # fmt: skip
    assert read_hosts == expected
    members = {group: set(body.get("hosts", ())) & expected.keys() for group, body in listed.items()}
    for group, body in listed.items():
        for child in body.get("children", ()):
            members[group] |= members.get(child, set())
    assert all(set(inventory.groups[group]) >= members[group] for group in inventory.groups)


def listed(name: str) -> Any:
    """What `ansible-inventory --list` of ansible-core 2.19 printed for a file of ``data/inventories/ansible``."""
    return json.loads((DATA / "ansible" / f"{name}.listed.json").read_text())


def test_patterns_of_ansible_are_the_hosts_and_ports_that_ansible_inventory_prints_in_its_order() -> None:
    expected = listed("ranges")
    ports = {name: of_host["ansible_port"] for name, of_host in expected["_meta"]["hostvars"].items()}
    hosts = open_inventory(str(DATA / "ansible" / "ranges")).hosts
    assert [(host.address, host.ssh.port) for host in hosts] == [
        (name, ports.get(name)) for group in ("open", "letters", "ports") for name in expected[group]["hosts"]
    ]


def test_values_in_ini_are_those_that_ansible_inventory_prints() -> None:
    (expected,) = listed("values")["_meta"]["hostvars"].values()
    (host,) = open_inventory(str(DATA / "ansible" / "values")).hosts
    assert host.ssh.key == expected.pop("ansible_ssh_private_key_file") == '/k/a"b'
    assert host.ssh.user == str(expected.pop("ansible_user")) == "1000"
    assert expected.pop("h") is None and "h" not in host.vars
    assert json.dumps(host.vars, sort_keys=True, default=dict) == json.dumps(expected, sort_keys=True)


def test_groups_of_ansible_that_no_expression_could_name_are_selected_by_another_name_and_said_to_be() -> None:
    text = "all: {children: {image-Ubuntu 22.04: {hosts: n1}, tag/a: {children: {image-Ubuntu 22.04: , k:v: {hosts: n2}}}}}\n"
    inventory = read(text)
    assert dict(inventory.groups) == {"image-Ubuntu_22.04": ("n1",), "tag_a": ("n1", "n2"), "k_v": ("n2",)}
    assert inventory.notes == ("groups renamed: image-Ubuntu_22.04 for 'image-Ubuntu 22.04', tag_a for 'tag/a', k_v for 'k:v'",)
    (fault,) = faults_of(lambda: read("[tag/a]\nn1\n[tag_a]\nn2\n"))
    assert fault.startswith("lab.yaml:1: expected a group name, got 'tag/a'")


def test_a_section_with_spaces_is_refused_as_ansible_does() -> None:
    found = faults_of(lambda: read("[ gpu ]\nn1\n"))
    assert found == ["lab.yaml:1: expected [group], [group:children] or [group:vars], got '[ gpu ]'. write it without spaces"]


def test_what_an_ansible_inventory_says_and_orch_does_not_read_is_named_once() -> None:
    assert open_inventory(str(DATA / "ansible" / "cluster" / "hosts")).notes == (
        "not read: StrictHostKeyChecking of ansible_ssh_common_args, ansible_become; interface (a template); "
        "group_vars/all/vault.yml (encrypted)",
    )
    assert open_inventory(str(DATA / "ansible" / "sites")).notes == (
        "not read: sw1 (connection network_cli, not ssh)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ('echo \'{"gpu": ["n1", "n2"]\'', "--list: expected JSON, got 21 bytes of something else"),
        ("echo no token >&2; exit 3", "--list: expected exit status 0, got 3: no token"),
        ("exit 3", "--list: expected exit status 0, got 3. it printed no reason; run it by hand"),
        ("echo '[1]'", "expected a mapping of groups, got a list"),
        ("exec sleep 60", "--list: expected an answer within 0.2 s, got none"),
    ],
)
def test_a_program_that_prints_no_inventory_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr("orchestrator.inventory.ansible_files._PROGRAM_S", 0.2 if "sleep" in program else 60.0)
    path = tmp_path / "cloud"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    found = faults_of(lambda: open_inventory(str(path)))
    assert words in found[0] and str(path) in found[0]


def test_a_directory_without_inventories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "notes.md").write_text("x\n")
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path)))
    assert fault == f"{tmp_path}: expected inventories of Ansible in the directory, there are none"


def test_a_directory_of_other_things_is_refused_before_a_program_in_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "program").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\necho '{{}}'\n")
    (tmp_path / "a" / "program").chmod(0o755)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "settings").write_text("what: [is, this\n")
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path)))
    assert fault.startswith(f"{tmp_path}/settings")
    monkeypatch.setattr("orchestrator.inventory.ansible_files._MOST_FILES", 2)
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path)))
    assert "expected a directory of inventories, with at most 2 files in it and below it, got more" in fault
    assert not (tmp_path / "started").exists()


def test_loops_and_crowds_of_ansible_groups_are_refused() -> None:
    loop = faults_of(lambda: read("n1\n[a:children]\nb\n[b:children]\na\n[a]\nn1\n", "x.ini"))
    assert loop[0].startswith("x.ini:2: expected groups without a loop, got a → b → a")
    crowd = faults_of(lambda: read("".join(f"[g{n}]\nn1\n" for n in range(1500)), "x.ini"))
    assert "at most 1000 groups, got 1501" in crowd[0]
    members = faults_of(lambda: read("".join(f"[g{n}]\nn[1:9999]\n" for n in range(11)), "x.ini"))
    assert "at most 100000 memberships" in members[0]


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("10.11.0.[2-3]", "10.11.0.2 10.11.0.3"),
        ("10.11.0.2-3", "10.11.0.2 10.11.0.3"),
        ("b,a,b", "b a"),
        ("node1,node[1-2]", "node1 node2"),
        ("fd00::1", "fd00--1"),
        ("localhost", "localhost"),
    ],
)
def test_an_expression_is_an_inventory_without_counts(expression: str, hosts: str) -> None:
    inventory = from_expression(expression)
    assert [host.name for host in inventory.hosts] == hosts.split()
    assert {(host.gpus, host.ssh) for host in inventory.hosts} == {(None, SshSettings())}
    assert inventory.source == expression


def test_hosts_may_be_written_with_their_user() -> None:
    inventory = from_expression("me@node[1-2],you@n9")
    assert [(host.name, host.ssh.user) for host in inventory.hosts] == [("node1", "me"), ("node2", "me"), ("n9", "you")]
    hosts = read("me@node1 slots=8\nnode2\n").hosts
    assert [(host.name, host.ssh.user, host.gpus) for host in hosts] == [("node1", "me", 8), ("node2", None, None)]


def test_a_machine_file_with_a_line_for_each_slot_names_each_host_once() -> None:
    hosts = read("node1\nnode1\nnode2\nnode2\n").hosts  # as PBS writes it
    assert [(host.name, host.slots, host.gpus) for host in hosts] == [("node1", 2, None), ("node2", 2, None)]


def test_a_number_after_the_colon_is_a_port_where_it_cannot_be_slots() -> None:
    text = "me@gpu[01-02]:2222, root@[fd00::1]:22, c:4022, d:8, ann@e"
    for hosts in (from_expression(text).hosts, read(text.replace(", ", "\n") + "\n").hosts):
        assert [(host.name, host.address, host.ssh.user, host.ssh.port, host.gpus) for host in hosts] == [
            ("gpu01", "gpu01", "me", 2222, None), ("gpu02", "gpu02", "me", 2222, None),
            ("fd00--1", "fd00::1", "root", 22, None), ("c", "c", None, 4022, None), ("d", "d", None, None, 8),
            ("e", "e", "ann", None, None),
        ]  # fmt: skip


def test_ports_of_one_address_are_machines_with_names_of_their_own() -> None:
    hosts = from_expression("root@10.0.0.1:2201,root@10.0.0.1:2202,root@10.0.0.2:2201").hosts
    assert [(host.name, host.address, host.ssh.port) for host in hosts] == [
        ("10.0.0.1-2201", "10.0.0.1", 2201), ("10.0.0.1-2202", "10.0.0.1", 2202), ("10.0.0.2", "10.0.0.2", 2201),
    ]  # fmt: skip


def test_a_port_that_would_read_as_the_end_of_a_range_of_addresses_is_called_a_port() -> None:
    hosts = from_expression("root@10.0.0.1:22,root@10.0.0.1:2201,root@n1:22,root@n1:23").hosts
    assert [(host.name, host.address, host.ssh.port) for host in hosts] == [
        ("10.0.0.1-port22", "10.0.0.1", 22), ("10.0.0.1-2201", "10.0.0.1", 2201), ("n1-22", "n1", 22), ("n1-23", "n1", 23),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["root@:22", "root@[]:22", "root@"])
def test_a_user_without_a_host_is_refused(text: str) -> None:
    with pytest.raises(Faults, match="expected a host, got an empty text"):
        from_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "n1\nn1\nn2\n",  # $PBS_NODEFILE and $LSB_DJOB_HOSTFILE
        "n1 2 n2 1\n",  # $LSB_MCPU_HOSTS
        "n1 n1 n2",  # $LSB_HOSTS
    ],
)
def test_machine_files_of_schedulers_count_slots_and_leave_gpus_to_be_asked(text: str, tmp_path: Path) -> None:
    path = tmp_path / "1234.server"
    path.write_text(text)
    inventories = [open_inventory(str(path))] if "\n" in text else []
    for inventory in [*inventories, *([open_inventory(text.strip())] if " " in text else [])]:
        assert [(host.name, host.slots, host.gpus) for host in inventory.hosts] == [("n1", 2, None), ("n2", 1, None)]


def test_spaces_around_the_equals_sign_of_slots_are_read() -> None:
    assert [(host.name, host.gpus) for host in read("n1 slots = 4 max_slots=8\nn2 slots= 2\n").hosts] == [("n1", 4), ("n2", 2)]


def test_what_a_dynamic_inventory_prints_is_read() -> None:
    text = """{
      "_meta": {"hostvars": {"n1": {"ansible_host": "10.0.0.1", "ansible_port": 2222}, "n2": {"ansible_user": "bob"}}},
      "all": {"children": ["gpu", "ungrouped"]},
      "gpu": {"hosts": ["n1", "n2"], "vars": {"ansible_user": "ann"}},
      "ungrouped": {"hosts": []}
    }"""
    inventory = read(text)
    assert [(host.name, host.address, host.ssh.user, host.ssh.port) for host in inventory.hosts] == [
        ("n1", "10.0.0.1", "ann", 2222), ("n2", "n2", "bob", None),
    ]  # fmt: skip
    assert [host.name for host in inventory.select("@gpu")] == ["n1", "n2"]


def test_what_ansible_inventory_prints_is_the_inventory_that_it_was_printed_for(tmp_path: Path) -> None:
    """The text is that of `ansible-inventory --list` for a file with a `!unsafe` user, a `!vault` value and a template."""
    text = """{
      "_meta": {"hostvars": {"n1": {
        "ansible_user": {"__ansible_unsafe": "me"}, "data_dir": {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256\\n6162"},
        "interface": "{{ y }}", "racks": [{"__ansible_unsafe": "a"}]}}, "profile": "inventory_legacy"},
      "all": {"children": ["ungrouped"]}, "ungrouped": {"hosts": ["n1", "n2"]}
    }"""
    for size in (0, 2 << 20):  # a large one is no longer read as YAML
        (tmp_path / "hosts.json").write_text(text.replace('"{{ y }}"', f'"{{{{ y }}}}", "x": "{"x" * size}"'))
        inventory = open_inventory(str(tmp_path / "hosts.json"))
        assert [(host.name, host.ssh.user) for host in inventory.hosts] == [("n1", "me"), ("n2", None)]
        assert inventory.notes == ("not read: data_dir (an encrypted value); interface (a template)",)
        assert inventory.hosts[0].vars["racks"] == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": 1, "hosts": {"n1": {}}}', "expected at most 1 MiB, got more. only what ansible-inventory --list prints"),
        ('{"_meta": {}, "gpu": ["n1"', "expected JSON, got 2097178 bytes of something else"),
    ],
)
def test_a_large_file_that_ansible_inventory_did_not_print_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "hosts.json").write_text(text.ljust(len(text) + (2 << 20)))
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path / "hosts.json")))
    assert fault.startswith(f"{tmp_path}/hosts.json: {words}")


def test_hosts_of_a_dynamic_inventory_are_those_in_its_groups() -> None:
    text = '{"_meta": {"hostvars": {"n1": {"ansible_user": "me"}, "gone": {}}}, "gpu": {"hosts": ["n1"]}}'
    assert [(host.name, host.ssh.user) for host in read(text).hosts] == [("n1", "me")]


def test_an_inventory_program_is_refused_with_what_to_do() -> None:
    (fault,) = faults_of(lambda: read("#!/usr/bin/env python3\nprint('{}')\n"))
    assert "got a program that may not be executed" in fault and "--list > hosts.json" in fault


def test_variables_next_to_an_ansible_inventory_are_read_in_ansibles_order(tmp_path: Path) -> None:
    files = {
        "hosts.ini": "[gpu]\nn1 ansible_port=22\nn2\nn3 ansible_user=inline\n[gpu:vars]\nansible_user=group-inline\n",
        "group_vars/all.yml": "ansible_user: all-file\nansible_port: 2200\ndb_password: '{{ vault }}'\n",
        "group_vars/gpu/ssh.yml": "ansible_user: gpu-file\nansible_ssh_private_key_file: ~/.ssh/gpu\npython: /opt/python\n",
        "group_vars/gpu/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        "host_vars/n2.yaml": "ansible_user: host-file\nansible_ssh_common_args: '-o ProxyJump=me@gate'\nhuge: [1, 2]\n",
        "host_vars/unknown": "ansible_user: nobody\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hosts = open_inventory(str(tmp_path / "hosts.ini")).hosts
    assert [(host.name, host.ssh.user, host.ssh.port, host.ssh.jump) for host in hosts] == [
        ("n1", "gpu-file", 22, None), ("n2", "host-file", 2200, "me@gate"), ("n3", "inline", 2200, None),
    ]  # fmt: skip
    assert {host.ssh.key for host in hosts} == {"~/.ssh/gpu"}
    assert [dict(host.vars) for host in hosts] == [{"python": "/opt/python"}] * 3
    (tmp_path / "list").write_text("n1\nn2\n")
    assert [host.ssh.user for host in open_inventory(str(tmp_path / "list")).hosts] == ["all-file", "host-file"]
    (tmp_path / "group_vars" / "all.yml").write_text("ansible_user: [x]\n")
    (fault, *_) = faults_of(lambda: open_inventory(str(tmp_path / "list")))
    assert f"{tmp_path}/group_vars/all.yml:1: ansible_user" in fault


@pytest.mark.parametrize(
    ("arguments", "chosen", "unread", "refused"),
    [
        ("-J gate", {"jump": "gate"}, (), ""),
        ("-oProxyJump=a,b -C -q -tt", {"jump": "a,b"}, (), ""),
        ("-o 'ProxyJump me@gate'", {"jump": "me@gate"}, (), ""),
        ('-o ProxyCommand="ssh -p 2222 -W %h:%p -q me@gate"', {"jump": "me@gate:2222"}, (), ""),
        ('-o ProxyCommand="/usr/bin/ssh -W [%h]:%p -l me -oPort=23 gate"', {"jump": "me@gate:23"}, (), ""),
        (
            "-o ProxyCommand='ssh -o StrictHostKeyChecking=no -i ~/.ssh/g -W %h:%p me@gate'",
            {"jump": "me@gate"},
            ("StrictHostKeyChecking of ProxyCommand", "IdentityFile of ProxyCommand"),
            "",
        ),
        ("-o ControlPersist=60s -i ~/.ssh/k -l ann -p 22", {"key": "~/.ssh/k", "user": "ann", "port": 22}, (), ""),
        ("-F other.conf -o UserKnownHostsFile=/k", {"config": "other.conf", "known_hosts": "/k"}, (), ""),
        ("-o ConnectTimeout=5 -o Ciphers=x", {"connect_timeout_s": 5}, ("Ciphers",), ""),
        (
            "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
            {},
            ("StrictHostKeyChecking", "UserKnownHostsFile"),
            "",
        ),
        ("-o ProxyCommand='nc %h %p'", {}, (), "-o ProxyCommand=nc %h %p"),
        ("-o ProxyCommand='ssh -W %h:%p'", {}, (), "-o ProxyCommand=ssh -W %h:%p"),
        ("-o ProxyCommand='ssh -J a -W %h:%p b'", {}, (), "-o ProxyCommand=ssh -J a -W %h:%p b"),
        ("-o HostName=other", {}, (), "-o HostName=other"),
        ("-o", {}, (), "-o"),
        ("-p x", {}, (), "-p x"),
        ("'", {}, (), "'"),
    ],
)
def test_arguments_for_ssh_have_a_plain_meaning_or_are_named_or_refused(
    arguments: str, chosen: dict[str, Any], unread: tuple[str, ...], refused: str
) -> None:
    assert ssh_args.settings(arguments) == ssh_args.Arguments(chosen, unread, refused)


def test_an_expression_may_count_gpus_as_horovod_does() -> None:
    inventory = from_expression("a:8,gpu[1-2]:4,c")
    assert [(host.name, host.gpus) for host in inventory.hosts] == [("a", 8), ("gpu1", 4), ("gpu2", 4), ("c", None)]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("@lab", "a group and no inventory that holds it"),
        ("me@", "expected a host, got an empty text"),
        ("node1:22", "a number after the colon counts slots"),
        ("node1:0", "slots as a whole number from 1 to 1024"),
        ("[fd00::1]", "without brackets"),
        ("node[1-", "paired brackets"),
        ("a b,c", "without spaces"),
        ("me@a:0", "expected a port from 1 to 65535, got 0"),
        ("me@a:70000", "expected a port from 1 to 65535, got 70000"),
        ("-oProxyCommand=x", "letters, digits"),
        ("../x", "letters, digits"),
        ("", "empty text"),
        ("a,,b", "each side of a comma"),
    ],
)
def test_a_bad_expression_makes_no_inventory(expression: str, message: str) -> None:
    (fault,) = faults_of(lambda: from_expression(expression))
    assert message in fault
    assert fault.startswith(f"--hosts {expression!r}: ")


OURS = ["schema: 1\n", "hosts:\n", "  node1:", " {gpus: 8}\n", "groups: {a: ['@a']}\n", "defaults: {}\n", "@lab"]
ANSIBLE = ["[lab]\n", "[lab:vars]\n", "[a:children]\n", "lab\n", " ansible_host=x", "all:\n", "  children:\n", "    hosts:\n"]
OTHERS = ["node[01:03]", "node[a:c]:22", " slots=8", ":8", "n1", "\n", "  ", "# c\n", "'", '"', ",", "fd00::1"]
ODDITIES = ["{{ x }}", "=", "\t", "\0", "é", "..", "/", "\u202e"]
PIECES = st.sampled_from(OURS + ANSIBLE + OTHERS + ODDITIES)


@settings(deadline=None, max_examples=examples(600))
@given(st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=50)))
def test_any_text_is_an_inventory_or_refused_with_its_source(text: str) -> None:
    try:
        inventory = read(text, "fuzz")
    except OrchError as error:
        assert error.exit_code == 2
        assert str(error).startswith("fuzz")
        return
    assert inventory.hosts
    assert len({host.name.casefold() for host in inventory.hosts}) == len(inventory.hosts)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", host.name) for host in inventory.hosts)


@settings(deadline=None, max_examples=examples(150))
@given(st.binary(max_size=50))
def test_any_bytes_are_an_inventory_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-inventory"
    path.write_bytes(data)
    try:
        assert read(yamlfile.read_text(path)).hosts
    except OrchError as error:
        assert error.exit_code == 2


KEYS = ["schema", "hosts", "groups", "defaults", "secrets", "gpus", "ssh", "env", "vars", "n1"]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=15,
)


@settings(deadline=None, max_examples=examples(300))
@given(JSON)
def test_any_document_is_an_inventory_or_refused(value: Any) -> None:
    try:
        parse(value, lambda path: 1, "x.yaml")
    except OrchError as error:
        assert error.exit_code == 2


@given(st.integers(1, 99), st.integers(0, 99))
def test_a_list_is_the_expression_that_it_folds_to(first: int, more: int) -> None:
    names = expand(f"gpu[{first}-{first + more}]")
    listed = read("\n".join(names) + "\n")
    assert [host.name for host in listed.hosts] == names == [host.name for host in from_expression(",".join(names)).hosts]


def test_what_an_ansible_group_expects_reaches_its_hosts_and_a_host_may_say_otherwise() -> None:
    hosts = read(
        "all:\n  children:\n    h200:\n      vars: {expect: {gpus: 8, mtu: 9000}}\n"
        "      hosts: {a: {}, b: {expect: {mtu: 1500}}}\n    cpu: {hosts: {c: {}}}\n"
    ).hosts
    # A variable of the host replaces that of the group as a whole, which is Ansible's way.
    assert {host.name: dict(host.expect) for host in hosts} == {"a": {"gpus": 8, "mtu": 9000}, "b": {"mtu": 1500}, "c": {}}


SECRET = "hunter2-and-more"
TOP = "schema: 1\nhosts: {a: {address: 10.0.0.1}}\n"
ENV = TOP + "defaults:\n  env:\n    HF_TOKEN"


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
def test_nothing_said_of_an_inventory_quotes_what_may_be_a_secret(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts.yaml"
    for source in (text, text.replace("schema: 1\n", "schema: 1\nbase: other.yaml\n")):
        path.write_text(source)
        try:
            said: Sequence[str] = open_inventory(str(path)).notes
            assert said
        except OrchError:
            said = faults_of(lambda: open_inventory(str(path)))
        assert not [words for words in said if "hunter2" in words]


@pytest.mark.parametrize("value", ["abc", "'a b c'", "\"'abc'\"", "x"])
def test_a_secret_that_is_too_short_to_be_hidden_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(f"schema: 1\ndefaults: {{env: {{HF_TOKEN: {value}, A: x}}}}\nhosts: {{'n[1-3]': {{}}}}\n")
    (fault,) = faults_of(lambda: open_inventory(str(path)))
    assert (
        fault.startswith(f"{path}: env.HF_TOKEN of n[1-3]: expected a secret of at least 4 characters") and "abc" not in fault
    )


@pytest.mark.parametrize("value", ["abcd", "'1'", "'off'", "'True'", "''", "'120'"])
def test_switches_may_have_the_name_of_a_secret(tmp_path: Path, value: str) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(f"schema: 1\ndefaults: {{env: {{HF_HUB_DISABLE_IMPLICIT_TOKEN: {value}}}}}\nhosts: {{n1: {{}}}}\n")
    assert open_inventory(str(path)).secrets == ("HF_HUB_DISABLE_IMPLICIT_TOKEN",)


def test_the_transport_of_a_host_is_its_own_or_its_last_groups_or_the_default() -> None:
    text = (
        "schema: 1\ndefaults: {transport: openssh}\ngroups:\n  inner: {hosts: 'a[1-3]', transport: ssh}\n"
        "  some: {hosts: a2, transport: openssh}\n  none: [a1]\nhosts:\n  'a[1-2]':\n  a3: {transport: openssh}\n  b:\n"
    )
    assert {host.name: host.transport for host in read(text).hosts} == {
        "a1": "ssh",
        "a2": "openssh",
        "a3": "openssh",
        "b": "openssh",
    }
    assert read(TOP).hosts[0].transport == "ssh"
    fault = faults_of(lambda: read(text.replace("a3: {transport: openssh}", "a3: {transport: rsh}")))
    assert fault == ["lab.yaml:9: hosts.a3.transport: expected one of ssh, openssh, srun, got the text 'rsh'"]
