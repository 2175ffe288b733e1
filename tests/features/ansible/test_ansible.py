"""Ansible inventories mean what `ansible-inventory` prints; what is read without it means the same,
or is refused by name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.ansible.hosts import _ssh_settings
from orchestrator.inventory.read import open_inventory
from orchestrator.record.bench_parts import PlannedWith
from tests.support.inventories import DATA, SECRET, SECRET_NAMES, faults_of, plain, read
from tests.support.judge import LIMIT_S

FOLDER = DATA / "ansible"
"""Inventories as teams have them, each with what `ansible-inventory --list` of ansible-core 2.19
printed for it.
"""
NAMES = sorted(path.name for path in FOLDER.iterdir())
REAL = shutil.which("ansible-inventory")
HINT = (
    "pip install ansible-core, and orch asks ansible-inventory; "
    "or write an inventory of orch, such as inventory/cluster.yaml"
)


@pytest.fixture(autouse=True)
def path_without_ansible(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Leave on the PATH only what scripts of tests need."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("env", "sh", "bash", "cat", "sleep", "touch", "yes"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))


def source_of(name: str) -> str:
    files = (path for path in sorted((FOLDER / name).iterdir()) if path.is_file())
    return str(next(path for path in files if path.name != "listed.json"))


def without_empty_groups(inventory: Any) -> dict[str, Any]:
    """What an inventory says; a group without hosts is not always printed, and the order of hosts
    is that of printed groups.
    """
    said = plain(inventory)
    groups = said["groups"].items()
    return said | {"groups": {name: sorted(members) for name, members in groups if members}}


@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_inventory_is_the_one_that_ansible_inventory_printed(name: str) -> None:
    found = open_inventory(source_of(name))
    printed = open_inventory(str(FOLDER / name / "listed.json"))
    assert without_empty_groups(found) == without_empty_groups(printed)
    assert found.notes == printed.notes


@pytest.mark.parametrize("name", NAMES)
def test_what_ansible_inventory_printed_is_taken_word_for_word(name: str) -> None:
    path = FOLDER / name / "listed.json"
    listed = json.loads(path.read_text())
    variables = listed.pop("_meta")["hostvars"]
    members = {group: set(body.get("hosts", ())) for group, body in listed.items()}
    for _ in listed:
        for group, body in listed.items():
            for child in body.get("children", ()):
                members[group] |= members.get(child, set())
    expected = {}
    for host in members["all"]:
        said = variables.get(host, {})
        if said.get("ansible_connection", "ssh") == "ssh":
            key = said.get("ansible_private_key_file")
            port = said.get("ansible_port")
            expected[host] = (
                said.get("ansible_host", host),
                said.get("ansible_ssh_user", said.get("ansible_user")),
                port and int(port),
                said.get("ansible_ssh_private_key_file", key),
            )
    inventory = open_inventory(str(path))
    assert {
        host.name: (host.address, host.ssh.user, host.ssh.port, host.ssh.key)
        for host in inventory.hosts
    } == expected
    for group, names in inventory.groups.items():
        assert set(names) == members[group] & expected.keys()


@pytest.mark.skipif(REAL is None, reason="needs ansible-inventory (pip install ansible-core)")
@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_inventory_is_the_one_that_ansible_reads_now(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = open_inventory(source_of(name))
    monkeypatch.setenv("PATH", f"{Path(str(REAL)).parent}:/usr/bin:/bin")
    assert without_empty_groups(open_inventory(source_of(name))) == without_empty_groups(expected)


@pytest.mark.parametrize(
    ("text", "where", "got"),
    [
        ("[gpu]\nn[1:9:2]\n", ":2", "the hosts 'n[1:9:2]'"),
        ("[gpu]\nn[a:c]\n", ":2", "the hosts 'n[a:c]'"),
        ("[gpu]\nfd00::1\n", ":2", "the hosts 'fd00::1'"),
        ("[gpu]\n10.0.0.2-5\n", "", "the host '10.0.0.2-5'"),
        ("[gpu]\nn1\n[cpu]\nn1:22\n", ":4", "another port of n1"),
        ("[gpu]\nn1,n2\n", ":2", "the hosts 'n1,n2'"),
        ("[gpu]\nn1\n[gpu:vars]\nansible_group_priority=5\n", ":4: ansible_group_priority",
         "the priority of a group"),
        ("[gpu]\nn1 env=\"{'A'}\"\n", ":2: env", "a set, bytes or the like"),
        ("[gpu:children]\nungrouped\n[gpu]\nn1\n", ":1", "'ungrouped' above or below"),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "", "an encrypted inventory"),
        ("plugin: aws_ec2\nregions: [eu-west-1]\n", ":1: plugin",
         "the settings of Ansible's inventory plug-in 'aws_ec2'"),
    ],
)  # fmt: skip
def test_what_only_ansible_reads_is_refused_by_name(text: str, where: str, got: str) -> None:
    faults = faults_of(lambda: read(text))
    assert (
        f"lab.yaml{where}: expected hosts, groups and plain variables, got {got}. {HINT}" in faults
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[ gpu ]\nn1\n",
         "lab.yaml:1: expected [group], [group:children] or [group:vars], got '[ gpu ]'"),
        ("[gpu]\nn1 stray\n",
         "lab.yaml:2: expected name=value, got a word without '='. write each host on its own line"),
        ("[gpu]\nn1 ansible_host='open\n",
         "lab.yaml:2: expected paired quotes, got no closing quotation"),
        ("[gpu]\nn[3:1]\n", "lab.yaml:2: expected an ascending range, its ends padded to one width, got '3-1'"),
        ("[gpu:vars]\ngpus=1\n", "lab.yaml:1: expected a known group, got 'gpu'"),
        ("[gpu:children]\ncpu\n", "lab.yaml:1: expected a known group, got 'cpu'"),
        ("[a]\nn1\n[a:children]\nb\n[b:children]\na\n",
         "lab.yaml: expected groups without a loop, got a → b → a"),
        ("all: {hosts: {n1: {gpus: many}}}\n",
         "lab.yaml:1: all.hosts.n1.gpus: expected a whole number from 0 to 1024, got the text 'many'"),
        ("[gpu]\nn1 ansible_hots=10.0.0.1\n",
         "lab.yaml:2: ansible_hots: expected a variable of Ansible, got ansible_hots. did you mean ansible_host?"),
        ("all: {hosts: {n1: {ansible_usr: me}}}\n", "lab.yaml:1: all.hosts.n1.ansible_usr: expected a variable of"),
        ("[gpu]\nn1\n[gpu:vars]\nansible_prot=2222\n", "lab.yaml:4: ansible_prot: expected a variable of Ansible"),
        ("all: {hosts: {n1: 5}}\n", "lab.yaml:1: all.hosts.n1: expected a mapping, got a number. a name"),
        ("all: {hosts: {n1: }, child: }\n", "lab.yaml:1: all.child: expected a key of a group, got 'child'. a group has"),
        ("[gpu]\nn1 ansible_connection=local\n",
         "lab.yaml: expected a host that is reached by ssh, got n1 (connection local, not ssh)"),
        ("all: {children: {tag/a: {hosts: {n1: }}}}\n", "lab.yaml:1: all.children.tag/a: expected a group name, got 'tag/a'"),
        ("[gpu]\nn1 ansible_host='{{ x }}'\n", "lab.yaml:2: ansible_host: expected a plain value, got a template or"),
        ("all: {hosts: {n1: {ansible_user: !vault x}}}\n", "lab.yaml:1: all.hosts.n1.ansible_user: expected a plain value"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_line(text: str, fault: str) -> None:
    found = faults_of(lambda: read(text))
    assert any(each.startswith(fault) for each in found), found


def test_all_faults_of_a_file_are_said_together() -> None:
    assert len(faults_of(lambda: read("[gpu]\nn1 stray\nn[a:b]\n[x:vars]\n"))) == 3


def test_other_variables_without_a_plain_value_are_named_once() -> None:
    text = "[gpu]\nn[1:9]\n[gpu:vars]\ninterface={{ x }}\nenv=prod\ndata_dir=/d\nrole={{ y }}\n"
    inventory = read(text)
    assert inventory.notes == ("not read: interface, env (no plain value)",)
    assert {str(dict(host.vars)) for host in inventory.hosts} == {"{'data_dir': '/d'}"}


@pytest.mark.parametrize("form", ["[gpu]\nn1 {}={}\n", "gpu: {{hosts: {{n1: {{{}: {}}}}}}}\n"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ansible_ssh_pass", "not read: ansible_ssh_pass (orch asks for passwords in a terminal)"),
        ("ansible_password", "not read: ansible_password (orch asks for passwords in a terminal)"),
        ("inteface", "not read: inteface (did you mean interface?)"),
        ("gpu", "not read: gpu (did you mean gpus?)"),
        ("slot", "not read: slot (did you mean slots?)"),
        ("ansible_hostname", ""),
        ("ansible_scp_extra_args", ""),
        ("ansible_python_interpreter", ""),
        ("ansible_become_pass", ""),
        ("rack", ""),
    ],
)
def test_a_variable_that_somebody_may_miss_is_named_without_its_value(
    form: str, name: str, said: str
) -> None:
    inventory = read(form.format(name, "hunter2secret").replace("[gpu]", "[gpu]\nn0 rack=3"))
    assert inventory.notes == ((said,) if said else ())
    assert "hunter2secret" not in repr(inventory)


def test_devices_without_quotes_are_those_devices() -> None:
    (host,) = read("[gpu]\nn1 gpus=2 cuda_visible_devices=2,3\n").hosts
    assert host.vars["cuda_visible_devices"] == "2,3"


def test_farther_groups_are_merged_first() -> None:
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
a_dir=/all
b_dir=/all
ansible_user=all
[top:vars]
b_dir=/top
c_dir=/top
d_dir=/top
[mid:vars]
c_dir=/mid
d_dir=/mid
[near:vars]
d_dir=/near
ansible_ssh_user=near
"""
    (host,) = read(text).hosts
    names = {"a_dir": "/all", "b_dir": "/top", "c_dir": "/mid", "d_dir": "/near"}
    assert (dict(host.vars), host.ssh.user) == (names, "near")


def test_files_of_variables_are_read_in_ansibles_order(tmp_path: Path) -> None:
    files = {
        "hosts.ini": "[gpu]\nn1 ansible_port=22\nn2\nn3 ansible_user=inline\n[gpu:vars]\nansible_user=group\n",
        "group_vars/all.yml": "ansible_user: all-file\nansible_port: 2200\ndb_password: '{{ vault }}'\n",
        "group_vars/gpu/ssh.yml": "ansible_user: gpu-file\nansible_ssh_private_key_file: ~/.ssh/gpu\n",
        "group_vars/gpu/notes.txt": "[",
        "group_vars/other/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        "host_vars/n2.yaml": "ansible_user: host-file\nansible_ssh_common_args: '-o ProxyJump=me@gate'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hosts = open_inventory(str(tmp_path / "hosts.ini")).hosts
    assert [(host.name, host.ssh.user, host.ssh.port, host.ssh.jump) for host in hosts] == [
        ("n1", "gpu-file", 22, None), ("n2", "host-file", 2200, "me@gate"), ("n3", "inline", 2200, None),
    ]  # fmt: skip
    assert {host.ssh.key for host in hosts} == {"~/.ssh/gpu"}


@pytest.mark.parametrize(
    ("name", "text", "got"),
    [
        ("gpu/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n", "an encrypted file"),
        ("gpu/net/jump.yml", "ansible_port: 1\n", "a folder in a folder of variables"),
        ("gpu", "ansible_port: 1\n", "gpu beside gpu.yml"),
        ("all.yml", "[1, 2]\n", "expected a mapping, got a list"),
        ("all.yml", "ansible_user: [x]\n", "all.yml:1: ansible_user: "),
    ],
)
def test_other_files_of_variables_are_refused(
    tmp_path: Path, name: str, text: str, got: str
) -> None:
    path = tmp_path / "group_vars" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    if name == "gpu":
        path.with_name("gpu.yml").write_text(text)
    (tmp_path / "hosts").write_text("[gpu]\nn1\n")
    found = faults_of(lambda: open_inventory(str(tmp_path / "hosts")))
    assert got in found[0] and str(tmp_path / "group_vars") in found[0]


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ("-J gate", {"jump": "gate"}),
        ("-oProxyJump=a,b -C -q -tt", {"jump": "a,b"}),
        ("-o 'ProxyJump me@gate'", {"jump": "me@gate"}),
        ('-o ProxyCommand="ssh -p 2222 -W %h:%p -q me@gate"', {"jump": "me@gate:2222"}),
        ("-o ProxyCommand='/usr/bin/ssh -o StrictHostKeyChecking=no -W [%h]:%p gate'", {"jump": "gate"}),
        ("-o ControlPersist=60s -i ~/.ssh/k -l ann -p 22", {"key": "~/.ssh/k", "user": "ann", "port": 22}),
        ("-F other.conf -o UserKnownHostsFile=/k", {"config": "other.conf", "known_hosts": "/k"}),
        ("-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o Ciphers=x", {}),
        ("-o ProxyCommand='nc %h %p'", "-o ProxyCommand=nc %h %p"),
        ("-o ProxyCommand='ssh -W %h:%p'", "-o ProxyCommand=ssh -W %h:%p"),
        ("-o ProxyCommand='ssh -q gate'", "-o ProxyCommand=ssh -q gate"),
        ("-o ProxyCommand='ssh -J a -W %h:%p b'", "-o ProxyCommand=ssh -J a -W %h:%p b"),
        ("-o ProxyJump=none", "-o ProxyJump=none"),
        ("-o User=%r", "-o User=%r"),
        ("-o HostName=other", "-o HostName=other"),
        ("-o", "-o"),
        ("-p x", "-p x"),
        ("gate", "gate"),
        ("'", "No closing quotation"),
    ],
)  # fmt: skip
def test_arguments_for_ssh_have_a_plain_meaning_or_are_refused(
    arguments: str, chosen: dict[str, Any] | str
) -> None:
    if isinstance(chosen, dict):
        assert dict(_ssh_settings(arguments)) == chosen
    else:
        with pytest.raises(ValueError) as caught:
            list(_ssh_settings(arguments))
        assert str(caught.value) == chosen


def test_a_setting_given_twice_in_different_ways_is_refused() -> None:
    text = "[gpu]\nn1 ansible_port=22 ansible_ssh_common_args='-p %s'\n"
    assert read(text % 22).hosts[0].ssh.port == 22
    (fault,) = faults_of(lambda: read(text % 23))
    assert "n1" not in fault and "got 'two values of port'" in fault


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
        ('echo \'{"gpu": ["n1", "n2"]\'', "--list: expected an inventory in JSON"),
        ("echo '[1]'", "--list: expected an inventory in JSON"),
        ("echo no token >&2; exit 3", "--list: expected exit status 0, got 3: no token"),
        ("exit 3", "--list: expected exit status 0, got 3: no reason. run it by hand"),
        ("exec sleep 60", "--list: expected an answer within 0.2 s, got none"),
        ("exec yes", "--list: expected an inventory, got more than 16 MiB"),
        ("echo no vault secrets >&2; exit 4",
         "got 4: no vault secrets. name a file with the vault's password in"),
    ],
)  # fmt: skip
def test_an_ansible_that_prints_no_inventory_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    limit_s = 0.2 if "sleep 60" in program else LIMIT_S
    monkeypatch.setattr("orchestrator.features.ansible.inventory._LIMIT_S", limit_s)
    install(monkeypatch, tmp_path, program)
    path = tmp_path / "hosts"
    path.write_text("[gpu]\nn1\n")
    found = faults_of(lambda: open_inventory(str(path)))
    assert words in found[0] and str(path) in found[0]


def test_ansible_is_asked_once_and_only_variables_that_orch_uses_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ansible_user": "me", "data_dir": "/d", "license": "sesame", "rack": 7}
    printed = json.dumps({"_meta": {"hostvars": {"n1": variables}}, "gpu": {"hosts": ["n1"]}})
    install(monkeypatch, tmp_path, f"echo asked >> {tmp_path}/asked\necho '{printed}'")
    (tmp_path / "hosts").write_text("[gpu]\nn1 rack=7\n")
    (host,) = open_inventory(str(tmp_path / "hosts")).hosts
    assert (host.ssh.user, dict(host.vars)) == ("me", {"data_dir": "/d"})
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_programs_and_directories_need_ansible(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "odd" / "folder.yml").mkdir(parents=True)
    (tmp_path / "cloud").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "cloud").chmod(0o755)
    for source, got in (
        (tmp_path / "cloud", "a program that prints one"),
        (tmp_path / "empty", "a directory"),
        (tmp_path / "odd", "a directory"),
    ):
        (fault,) = faults_of(lambda source=source: open_inventory(str(source)))  # type: ignore[misc]
        expected = f"{source}: expected hosts, groups and plain variables, got {got}. {HINT}"
        assert fault == expected


def test_a_directory_with_a_program_is_refused_before_the_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, "exit 3")
    (tmp_path / "d" / "a").mkdir(parents=True)
    program = tmp_path / "d" / "a" / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\necho '{{}}'\n")
    program.chmod(0o755)
    (fault,) = faults_of(lambda: open_inventory(str(tmp_path / "d")))
    assert "expected a directory of inventories, found the program 'program'" in fault
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(REAL is None, reason="needs ansible-inventory (pip install ansible-core)")
def test_ansible_opens_vaults_directories_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(str(REAL)).parent}:/usr/bin:/bin")
    monkeypatch.setenv("ANSIBLE_HOME", str(tmp_path / "home"))
    site = tmp_path / "site"
    (site / "group_vars").mkdir(parents=True)
    (site / "a.ini").write_text("[gpu]\nn1\n")
    (site / "b.yml").write_text("gpu: {hosts: {n2: {ansible_port: 23}}}\n")
    vault = site / "group_vars" / "gpu.yml"
    vault.write_text("ansible_user: hidden\nlicense: sesame\n")
    (tmp_path / "password").write_text("of the test\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    program = Path(str(REAL)).with_name("ansible-vault")
    subprocess.run([program, "encrypt", vault], check=True, capture_output=True)
    inventory = open_inventory(str(site))
    assert [(host.name, host.ssh.user, host.ssh.port) for host in inventory.hosts] == [
        ("n1", "hidden", None),
        ("n2", "hidden", 23),
    ]
    script = tmp_path / "cloud"
    script.write_text('#!/bin/sh\necho \'{"gpu": {"hosts": ["c1"]}}\'\n')
    script.chmod(0o755)
    assert [host.name for host in open_inventory(str(script)).hosts] == ["c1"]
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE")
    (fault,) = faults_of(lambda: open_inventory(str(site)))
    assert "no vault secrets" in fault and "ANSIBLE_VAULT_PASSWORD_FILE" in fault


PRINTED = """{
  "_meta": {"hostvars": {"n1": {"ansible_user": {"__ansible_unsafe": "me"}, "data_dir": {"__ansible_vault": "x"},
    "env": {"A": {"__ansible_unsafe": "b"}}}, "gone": {}}, "profile": "inventory_legacy"},
  "all": {"children": ["ungrouped", "empty"]}, "ungrouped": {"hosts": ["n1", "n2"]}
}"""


def test_a_printed_inventory_of_any_size_is_read(tmp_path: Path) -> None:
    for size in (0, 2 << 20):
        (tmp_path / "hosts.json").write_text(
            PRINTED.replace('"me"}', f'"me"}}, "x": "{"x" * size}"')
        )
        inventory = open_inventory(str(tmp_path / "hosts.json"))
        assert [(host.name, host.ssh.user) for host in inventory.hosts] == [
            ("n1", "me"),
            ("n2", None),
        ]
        assert inventory.hosts[0].env == {"A": "b"}
        assert inventory.notes == ("not read: data_dir (no plain value)",)


def test_what_a_program_prints_with_variables_of_groups_is_refused() -> None:
    text = '{"_meta": {"hostvars": {}}, "gpu": {"hosts": ["n1"], "vars": {"ansible_user": "ann"}}}'
    (fault,) = faults_of(lambda: read(text))
    assert "expected hosts and children in 'gpu', got other keys" in fault


def test_an_inventory_program_that_may_not_be_executed_is_refused_with_what_to_do() -> None:
    (fault,) = faults_of(lambda: read("#!/usr/bin/env python3\nprint('{}')\n"))
    assert "got a program that may not be executed" in fault and "--list > hosts.json" in fault


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
