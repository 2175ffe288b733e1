"""Ansible inventories mean what `ansible-inventory` prints; what is read without it means the same,
or is refused by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.ansible import ssh_args
from orchestrator.inventory.read import open_inventory
from orchestrator.record.bench_parts import PlannedWith
from tests.support.inventories import DATA, SECRET, SECRET_NAMES, faults_of, plain, read
from tests.support.judge import LIMIT_S

GOOD = sorted(path.name for path in (DATA / "ansible-good").iterdir() if path.suffix != ".json")
BAD = sorted(path.name for path in (DATA / "ansible-bad").iterdir() if path.suffix != ".expected")
HINT = "pip install ansible-core, and orch asks Ansible; or where Ansible is: ansible-inventory -i {} --list > hosts.json"


@pytest.fixture(autouse=True)
def path_without_ansible(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Leave on the PATH only what scripts of tests need."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("env", "sh", "bash", "cat", "sleep", "touch"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_inventory_means_what_stands_beside_it(name: str) -> None:
    path = DATA / "ansible-good" / name
    assert plain(read(path.read_text(), name)) == json.loads(
        path.with_name(f"{name}.json").read_text()
    )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_inventory_is_refused_with_all_its_faults_together(name: str) -> None:
    path = DATA / "ansible-bad" / name
    found = faults_of(lambda: read(path.read_text(), name))
    assert found == path.with_name(f"{name}.expected").read_text().splitlines()


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


def test_an_encrypted_value_is_refused_only_where_it_decides_to_which_machine_a_connection_goes() -> (
    None
):
    text = "all:\n  hosts: {a: {ansible_user: root}}\n  vars:\n    %s: !vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      61\n"
    inventory = read(text % "data_dir")
    assert (dict(inventory.hosts[0].vars), inventory.notes) == (
        {},
        ("not read: data_dir (an encrypted value)",),
    )
    assert read(text % "ansible_user").hosts[0].ssh.user == "root"  # a nearer value takes its place
    (fault,) = faults_of(lambda: read(text % "ansible_host"))
    assert fault.startswith(
        "lab.yaml:4: all.vars.ansible_host: expected a plain value, got an encrypted value."
    )


def test_an_encrypted_inventory_is_refused() -> None:
    (fault,) = faults_of(lambda: read("$ANSIBLE_VAULT;1.1;AES256\n6162\n"))
    assert fault.startswith(
        "lab.yaml: expected hosts, groups and plain variables, got an encrypted inventory. "
    )


@pytest.mark.parametrize(
    "more", ["regions: [eu-west-1]", "strict: false\ngroups: {gpu: \"'gpu' in name\"}", "hosts: {}"]
)
def test_settings_of_an_inventory_plugin_are_named_as_such_with_what_ansible_must_be_given(
    tmp_path: Path, more: str
) -> None:
    (tmp_path / "cloud.yml").write_text(f"# of the cloud\nplugin: aws_ec2\n{more}\n")
    source = str(tmp_path / "cloud.yml")
    (fault,) = faults_of(lambda: open_inventory(source))
    assert fault == (
        f"{tmp_path}/cloud.yml:2: plugin: expected hosts, groups and plain variables, "
        f"got the settings of Ansible's inventory plug-in 'aws_ec2'. {HINT.format(source)}; then pass --hosts hosts.json"
    )


LISTED = {"cluster": "cluster/hosts", "quoted": "quoted", "loose": "loose.yml"}


def jump_in(arguments: str) -> str | None:
    """The jump host in ssh arguments, by text alone: ``-J``, ``ProxyJump``, or the host and port of
    a ProxyCommand.
    """
    if match := re.search(r"(?:-J |ProxyJump=)(\S+)", arguments):
        return match[1]
    match = re.search(r"ProxyCommand=.* (\S+@[\w.]+) -p (\d+)", arguments)
    return f"{match[1]}:{match[2]}" if match else None


@pytest.mark.parametrize("name", LISTED)
def test_ansible_inventories_mean_what_ansible_inventory_prints(name: str) -> None:
    """``NAME.listed.json`` is what `ansible-inventory --list` of ansible-core 2.19 printed for the
    same files, decrypted.
    """
    listed = json.loads((DATA / "ansible" / f"{name}.listed.json").read_text())
    variables = listed.pop("_meta")["hostvars"]
    names = {host for group in listed.values() for host in group.get("hosts", ())}
    expected = {}
    for host in names:
        of_host = variables.get(host, {})
        if of_host.get("ansible_connection", "ssh") == "ssh":
            arguments = " ".join(
                of_host.get(f"ansible_ssh_{kind}_args", "") for kind in ("common", "extra")
            )
            port = of_host.get("ansible_port")
            expected[host] = (
                of_host.get("ansible_host", host), of_host.get("ansible_ssh_user", of_host.get("ansible_user")) or None,
                int(port) if port else None, of_host.get("ansible_ssh_private_key_file") or None, jump_in(arguments),
            )  # fmt: skip
    inventory = open_inventory(str(DATA / "ansible" / LISTED[name]))
    read_hosts = {host.name: (host.address, *(getattr(host.ssh, key) for key in ("user", "port", "key", "jump")))
                  for host in inventory.hosts}  # fmt: skip
    assert read_hosts == expected
    members = {
        group: set(body.get("hosts", ())) & expected.keys() for group, body in listed.items()
    }
    for group, body in listed.items():
        for child in body.get("children", ()):
            members[group] |= members.get(child, set())
    assert all(set(inventory.groups[group]) >= members[group] for group in inventory.groups)


def listed(name: str) -> Any:
    """What `ansible-inventory --list` of ansible-core 2.19 printed for a file of
    ``data/inventories/ansible``.
    """
    return json.loads((DATA / "ansible" / f"{name}.listed.json").read_text())


def test_patterns_of_ansible_are_the_hosts_and_ports_that_ansible_inventory_prints_in_its_order() -> (
    None
):
    expected = listed("ranges")
    ports = {
        name: of_host["ansible_port"] for name, of_host in expected["_meta"]["hostvars"].items()
    }
    hosts = open_inventory(str(DATA / "ansible" / "ranges")).hosts
    assert [(host.address, host.ssh.port) for host in hosts] == [
        (name, ports.get(name))
        for group in ("open", "letters", "ports")
        for name in expected[group]["hosts"]
    ]


def test_values_in_ini_are_those_that_ansible_inventory_prints() -> None:
    (expected,) = listed("values")["_meta"]["hostvars"].values()
    (host,) = open_inventory(str(DATA / "ansible" / "values")).hosts
    assert host.ssh.key == expected.pop("ansible_ssh_private_key_file") == '/k/a"b'
    assert host.ssh.user == str(expected.pop("ansible_user")) == "1000"
    assert expected.pop("h") is None and "h" not in host.vars
    assert json.dumps(host.vars, sort_keys=True, default=dict) == json.dumps(
        expected, sort_keys=True
    )


def test_groups_of_ansible_that_no_expression_could_name_are_selected_by_another_name_and_said_to_be() -> (
    None
):
    text = "all: {children: {image-Ubuntu 22.04: {hosts: n1}, tag/a: {children: {image-Ubuntu 22.04: , k:v: {hosts: n2}}}}}\n"
    inventory = read(text)
    assert dict(inventory.groups) == {
        "image-Ubuntu_22.04": ("n1",),
        "tag_a": ("n1", "n2"),
        "k_v": ("n2",),
    }
    assert inventory.notes == (
        "groups renamed: image-Ubuntu_22.04 for 'image-Ubuntu 22.04', tag_a for 'tag/a', k_v for 'k:v'",
    )
    (fault,) = faults_of(lambda: read("[tag/a]\nn1\n[tag_a]\nn2\n"))
    assert fault.startswith("lab.yaml:1: expected a group name, got 'tag/a'")


def test_a_section_with_spaces_is_refused_as_ansible_does() -> None:
    found = faults_of(lambda: read("[ gpu ]\nn1\n"))
    assert found == [
        "lab.yaml:1: expected [group], [group:children] or [group:vars], got '[ gpu ]'. write it without spaces"
    ]


def test_what_an_ansible_inventory_says_and_orch_does_not_read_is_named_once() -> None:
    assert open_inventory(str(DATA / "ansible" / "cluster" / "hosts")).notes == (
        "not read: StrictHostKeyChecking of ansible_ssh_common_args, ansible_become; interface (a template); "
        "group_vars/all/vault.yml (encrypted)",
    )


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> None:
    """Put a script on the PATH in the place of `ansible-inventory`."""
    (folder / "bin").mkdir()
    path = folder / "bin" / "ansible-inventory"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ('echo \'{"gpu": ["n1", "n2"]\'', "--list: expected JSON, got 21 bytes of something else"),
        ("echo no token >&2; exit 3", "--list: expected exit status 0, got 3: no token"),
        ("exit 3", "--list: expected exit status 0, got 3. it printed no reason; run it by hand"),
        ("echo '[1]'", "expected a mapping of groups, got a list"),
        ("exec sleep 60", "--list: expected an answer within 0.2 s, got none"),
        ("sleep 60 & wait", "--list: expected an answer within 0.2 s, got none"),
        ("exec cat /dev/zero", "--list: expected at most 16 MiB, got more"),
        ("exec cat /dev/zero >&2", "--list: expected at most 16 MiB, got more"),
        ("sleep 6 & echo '[1]'", "expected a mapping of groups, got a list"),
        (
            "echo no vault secrets >&2; exit 4",
            "got 4: no vault secrets. name a file with the vault's password in",
        ),
    ],
)
def test_an_ansible_that_prints_no_inventory_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(
        "orchestrator.features.ansible.program._LIMIT_S", 0.2 if "sleep 60" in program else LIMIT_S
    )
    install(monkeypatch, tmp_path, program)
    path = tmp_path / "hosts"
    path.write_text("[gpu]\nn1\n")
    found = faults_of(lambda: open_inventory(str(path)))
    assert words in found[0] and str(path) in found[0]


def test_what_needs_ansible_is_refused_by_name_without_it(tmp_path: Path) -> None:
    program = tmp_path / "cloud"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    for source, got in (
        (program, "a program that prints one"),
        (DATA / "ansible" / "sites", "a directory"),
    ):
        (fault,) = faults_of(lambda source=source: open_inventory(str(source)))  # type: ignore[misc]
        expected = f"{source}: expected hosts, groups and plain variables, got {got}. {HINT.format(source)}"
        assert fault == f"{expected}; then pass --hosts hosts.json"


REAL = shutil.which("ansible-inventory")


@pytest.mark.skipif(REAL is None, reason="needs ansible-inventory (pip install ansible-core)")
@pytest.mark.parametrize("name", ["cluster/hosts", "quoted", "loose.yml", "ranges", "values"])
def test_a_static_inventory_is_the_one_that_ansible_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(DATA / "ansible", tmp_path / "copy")
    (
        tmp_path / "copy" / "cluster" / "group_vars" / "all" / "vault.yml"
    ).unlink()  # no vault, only named so
    source = str(tmp_path / "copy" / name)
    expected = open_inventory(source)
    monkeypatch.setenv("PATH", f"{Path(str(REAL)).parent}:/usr/bin:/bin")
    found = open_inventory(source)
    groups = {
        name: members for name, members in found.groups.items() if members
    }  # keys that only hold what others repeat
    assert plain(replace(found, groups=groups)) == plain(expected)
    assert [host.name for host in found.hosts] == [host.name for host in expected.hosts]
    assert sorted(found.notes) == sorted(expected.notes)


@pytest.mark.skipif(REAL is None, reason="needs ansible-inventory (pip install ansible-core)")
def test_ansible_opens_vaults_directories_and_programs_and_other_variables_of_files_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(str(REAL)).parent}:/usr/bin:/bin")
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "home"))
    sites = open_inventory(str(DATA / "ansible" / "sites"))
    assert sites.notes == ("not read: sw1 (connection network_cli, not ssh)",)
    assert {host.name: host.address for host in sites.hosts}["cloud1"] == "198.51.100.1"
    (tmp_path / "password").write_text("of the test\n")
    (tmp_path / "group_vars").mkdir()
    vault = tmp_path / "group_vars" / "gpu.yml"
    vault.write_text("ansible_user: hidden\nlicense: sesame\nrack: far\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    subprocess.run(
        [Path(str(REAL)).with_name("ansible-vault"), "encrypt", vault],
        check=True,
        capture_output=True,
    )
    (tmp_path / "hosts").write_text("[gpu]\nn1 rack=r7\n")
    (host,) = open_inventory(str(tmp_path / "hosts")).hosts
    assert (host.ssh.user, dict(host.vars)) == ("hidden", {"rack": "r7"})
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE")
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path / "hosts")))
    assert "no vault secrets" in fault and "ANSIBLE_VAULT_PASSWORD_FILE" in fault


def test_a_directory_without_inventories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "notes.md").write_text("x\n")
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path)))
    assert fault == f"{tmp_path}: expected Ansible inventories in this directory, found none"


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
    monkeypatch.setattr("orchestrator.features.ansible.inventory._MOST_FILES", 1)
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path)))
    assert (
        "expected a directory of inventories, with at most 1 files in it and below it, got more"
        in fault
    )
    assert not (tmp_path / "started").exists()


def test_loops_and_crowds_of_ansible_groups_are_refused() -> None:
    loop = faults_of(lambda: read("n1\n[a:children]\nb\n[b:children]\na\n[a]\nn1\n", "x.ini"))
    assert loop[0].startswith("x.ini:2: expected groups without a loop, got a → b → a")
    crowd = faults_of(lambda: read("".join(f"[g{n}]\nn1\n" for n in range(1500)), "x.ini"))
    assert "at most 1000 groups, got 1501" in crowd[0]
    members = faults_of(lambda: read("".join(f"[g{n}]\nn[1:9999]\n" for n in range(11)), "x.ini"))
    assert "at most 100000 memberships" in members[0]


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


def test_what_ansible_inventory_prints_is_the_inventory_that_it_was_printed_for(
    tmp_path: Path,
) -> None:
    """The text is that of `ansible-inventory --list` for a file with a `!unsafe` user, a `!vault`
    value and a template.
    """
    text = """{
      "_meta": {"hostvars": {"n1": {
        "ansible_user": {"__ansible_unsafe": "me"}, "data_dir": {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256\\n6162"},
        "interface": "{{ y }}", "racks": [{"__ansible_unsafe": "a"}]}}, "profile": "inventory_legacy"},
      "all": {"children": ["ungrouped"]}, "ungrouped": {"hosts": ["n1", "n2"]}
    }"""
    for size in (0, 2 << 20):  # a large one is no longer read as YAML
        (tmp_path / "hosts.json").write_text(
            text.replace('"{{ y }}"', f'"{{{{ y }}}}", "x": "{"x" * size}"')
        )
        inventory = open_inventory(str(tmp_path / "hosts.json"))
        assert [(host.name, host.ssh.user) for host in inventory.hosts] == [
            ("n1", "me"),
            ("n2", None),
        ]
        assert inventory.notes == (
            "not read: data_dir (an encrypted value); interface (a template)",
        )
        assert inventory.hosts[0].vars["racks"] == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"schema": 1, "hosts": {"n1": {}}}',
            "expected at most 1 MiB, got more. only what ansible-inventory --list prints",
        ),
        ('{"_meta": {}, "gpu": ["n1"', "expected JSON, got 2097178 bytes of something else"),
    ],
)
def test_a_large_file_that_ansible_inventory_did_not_print_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
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
    assert [host.ssh.user for host in open_inventory(str(tmp_path / "list")).hosts] == [
        "all-file",
        "host-file",
    ]
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
        (
            '-o ProxyCommand="/usr/bin/ssh -W [%h]:%p -l me -oPort=23 gate"',
            {"jump": "me@gate:23"},
            (),
            "",
        ),
        (
            "-o ProxyCommand='ssh -o StrictHostKeyChecking=no -i ~/.ssh/g -W %h:%p me@gate'",
            {"jump": "me@gate"},
            ("StrictHostKeyChecking of ProxyCommand", "IdentityFile of ProxyCommand"),
            "",
        ),
        (
            "-o ControlPersist=60s -i ~/.ssh/k -l ann -p 22",
            {"key": "~/.ssh/k", "user": "ann", "port": 22},
            (),
            "",
        ),
        (
            "-F other.conf -o UserKnownHostsFile=/k",
            {"config": "other.conf", "known_hosts": "/k"},
            (),
            "",
        ),
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


def test_what_an_ansible_group_expects_reaches_its_hosts_and_a_host_may_say_otherwise() -> None:
    hosts = read(
        "all:\n  children:\n    h200:\n      vars: {expect: {gpus: 8, mtu: 9000}}\n"
        "      hosts: {a: {}, b: {expect: {mtu: 1500}}}\n    cpu: {hosts: {c: {}}}\n"
    ).hosts
    # A variable of the host replaces that of the group as a whole, which is Ansible's way.
    assert {host.name: dict(host.expect) for host in hosts} == {
        "a": {"gpus": 8, "mtu": 9000},
        "b": {"mtu": 1500},
        "c": {},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1 ansible_host=10.0.0.1 my-var=3\n", [("node1", None, None)]),
        ("node1 gpus=4 rack=3\n", [("node1", 4, None)]),
        ("[gpu]\nnode1:2222 slot=8\n", [("node1", None, 2222)]),
    ],
)
def test_settings_that_hostfiles_do_not_have_are_variables(
    text: str, expected: list[tuple[str, int | None, int | None]]
) -> None:
    assert [(host.name, host.gpus, host.ssh.port) for host in read(text).hosts] == expected


def test_variables_whose_names_look_like_secrets_are_secrets() -> None:
    assert read("all:\n  hosts:\n    a: {env: {HF_TOKEN: x, PLAIN: y}}\n").secrets == ("HF_TOKEN",)


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize(
    "form",
    [
        "[all:vars]\nNAME = {secret}\n[gpu]\na gpus=1\n",
        "[gpu]\na gpus=1 NAME={secret}\n",
        "all:\n  vars: {{users: [{{name: amy, NAME: {secret}}}]}}\n  hosts: {{a: {{gpus: 1}}}}\n",
    ],
)
def test_no_variable_that_may_be_secret_is_kept_with_a_bench(name: str, form: str) -> None:
    inventory = read(form.replace("NAME", name).format(secret=SECRET))
    written = repr(PlannedWith.of(inventory.hosts, inventory.secrets, {})) + repr(inventory)
    assert SECRET not in written
    assert any("not read: " in note for note in inventory.notes) or name.startswith("ansible_")


def test_ansible_is_asked_once_and_only_variables_that_are_used_or_written_in_the_file_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ansible_user": "me", "rack": "r7", "license": "sesame"}
    printed = json.dumps({"_meta": {"hostvars": {"n1": variables}}, "gpu": {"hosts": ["n1"]}})
    install(monkeypatch, tmp_path, f"echo asked >> {tmp_path}/asked\necho '{printed}'")
    (tmp_path / "hosts").write_text("[gpu]\nn1 rack=r7\n")
    (host,) = open_inventory(str(tmp_path / "hosts")).hosts
    assert (host.ssh.user, dict(host.vars)) == ("me", {"rack": "r7"})
    assert (tmp_path / "asked").read_text() == "asked\n"
