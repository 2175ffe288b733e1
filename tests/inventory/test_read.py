"""Inventories in every format: what good ones mean, and that all faults of a bad one are found,
placed and explained.

A file in ``data/inventories/good`` has its meaning beside it as JSON, a file in ``bad`` the whole
text of its refusal.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, OrchError
from orchestrator.inventory import open_inventory
from orchestrator.inventory.formats import recognise
from orchestrator.inventory.hosts import SshSettings
from orchestrator.inventory.schema import parse
from tests.support.examples import examples
from tests.support.inventories import DATA, faults_of, plain, read

GOOD = sorted(path.name for path in (DATA / "good").iterdir() if path.suffix != ".json")
BAD = sorted(path.name for path in (DATA / "bad").iterdir() if path.suffix != ".expected")
REFERENCE = Path(__file__).parents[2] / "inventory" / "cluster.yaml"


@pytest.mark.parametrize("name", GOOD)
def test_a_good_inventory_means_what_stands_beside_it(name: str) -> None:
    path = DATA / "good" / name
    assert plain(read(path.read_text(), name)) == json.loads(
        path.with_name(f"{name}.json").read_text()
    )


@pytest.mark.parametrize("path", ["/data", "~/images", "~bench/images", "~"])
def test_a_data_set_lies_at_the_root_or_in_a_home(path: str) -> None:
    assert (
        read(f"schema: 1\nhosts: {{a: {{vars: {{data_dir: '{path}'}}}}}}\n")
        .hosts[0]
        .vars["data_dir"]
        == path
    )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_inventory_is_refused_with_all_its_faults_together(name: str) -> None:
    path = DATA / "bad" / name
    found = faults_of(lambda: read(path.read_text(), name))
    assert found == path.with_name(f"{name}.expected").read_text().splitlines()


@pytest.mark.parametrize("name", [name for name in BAD if name.endswith(".yaml")])
def test_a_fault_names_the_line_that_holds_its_key(name: str) -> None:
    """Independent of the golden text: the last part of each key path is written on the line that
    the fault names.
    """
    lines = (DATA / "bad" / name).read_text().splitlines()
    for fault in faults_of(lambda: read((DATA / "bad" / name).read_text(), name)):
        match = re.match(rf"{re.escape(name)}:(\d+): (\S+): expected", fault)
        key = match[2].split(".")[-1] if match else ""
        if match and not key.isdecimal() and key not in ("schema", "", "''") and "\\" not in key:
            assert key in lines[int(match[1]) - 1]


def test_every_fault_says_what_was_expected_and_what_came() -> None:
    for path in (DATA / "bad").glob("*.expected"):
        for line in path.read_text().splitlines():
            assert re.match(rf"{re.escape(path.stem)}(:\d+)?: (.+: )?expected .+, got .+", line), (
                line
            )


def test_the_reference_inventory_is_four_nodes_with_eight_gpus() -> None:
    inventory = read(REFERENCE.read_text(), str(REFERENCE))
    assert [(host.name, host.address, host.gpus) for host in inventory.hosts] == [
        (f"node{n}", f"10.11.0.{n + 1}", 8) for n in range(1, 5)
    ]
    assert {host.vars["interface"] for host in inventory.hosts} == {"ib0"}
    assert inventory.hosts[0].env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert inventory.hosts[0].ssh.host_keys == "strict"


def test_what_the_reference_inventory_comments_out_is_valid_too() -> None:
    text = re.sub(
        r"^(\s*)# (\w+: |node5: |secrets: )", r"\1\2", REFERENCE.read_text(), flags=re.MULTILINE
    )
    secrets = 'DB_URL: "x"\n    WANDB_USER: "y"'
    text = text.replace("hosts:  ", "hosts:\n ").replace(
        "NCCL_DEBUG: INFO", f"NCCL_DEBUG: INFO\n    {secrets}"
    )
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
    assert hosts[0].ssh == SshSettings(
        user="bench", key="~/.ssh/id_bench", port=2222, connect_timeout_s=2.5
    )
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
    "again in capitals": (
        "  node1: {address: a}\n  Node1: {address: b}",
        "each host once, got 'Node1' again",
    ),
    "again in another unicode form": (
        f"  nodé: {{address: a}}\n  {NODE_IN_PARTS}: {{address: b}}",
        "letters, digits",
    ),
    "full width": ("  node1: {address: a}\n  ｎode1: {address: b}", "letters, digits"),
    "duplicate key": ("  a: {}\n  a: {}", "each key once, got 'a' again"),
    "too many": ('  "n[1-10001]": {}', "at most 10000 hosts, got 10001"),
    "too many together": ('  "n[1-9000]": {}\n  "m[1-9000]": {}', "at most 10000 hosts, got more"),
    "tag": ("  a: !!python/object/apply:os.system [id]", "expected no tags"),
    "3000 brackets": ("  a: " + "[" * 3000 + "]" * 3000, "at most 50 levels"),
    "tab": ("\ta: {}", "spaces, not with tabs"),
    "a name and another's address": (
        "  a: {address: b}\n  b: {address: c}",
        "got 'b', the address of 'a'",
    ),
    "two on one machine": (
        "  a: {address: H}\n  b: {address: h., ssh: {port: 22}}",
        "one name per machine, got 'a' and 'b'",
    ),
}


@pytest.mark.parametrize("case", ODD_HOSTS)
def test_an_odd_host_is_refused_with_its_line(case: str) -> None:
    body, message = ODD_HOSTS[case]
    found = faults_of(lambda: read(f"schema: 1\nhosts:\n{body}\n"))
    assert any(message in fault for fault in found)
    assert all(re.match(r"lab\.yaml(:\d+)?: ", fault) for fault in found)
    assert all(fault.isprintable() and len(fault) < 500 for fault in found)


def test_a_jump_host_may_be_a_pattern_of_the_ssh_configuration() -> None:
    assert (
        read("schema: 1\nhosts: {a: {ssh: {jump: 'me@gate+inner:22'}}}").hosts[0].ssh.jump
        == "me@gate+inner:22"
    )
    (fault,) = faults_of(
        lambda: read("schema: 1\nhosts: {a: {ssh: {jump: gate/inner}}}")
    )  # ssh refuses it, too
    assert "expected a jump host" in fault


def test_ten_thousand_hosts_are_read() -> None:
    assert len(read('schema: 1\nhosts: {"n[1-10000]": {}}').hosts) == 10_000


def test_one_machine_behind_two_ports_or_two_jump_hosts_is_two_hosts() -> None:
    text = "schema: 1\nhosts:\n  a: {address: h}\n  b: {address: h, ssh: {port: 23}}\n  c: {address: h, ssh: {jump: gate}}"
    assert len(read(text).hosts) == 3


@pytest.mark.parametrize("other", ["127.0.0.1", "::1", "ip6-localhost", "::ffff:127.0.0.1"])
def test_one_machine_under_several_of_its_own_names_is_one_host(other: str) -> None:
    text = f'schema: 1\nhosts: {{n1: {{address: localhost}}, n2: {{address: "{other}"}}}}\n'
    (fault,) = faults_of(lambda: read(text))
    assert "expected one name per machine, got 'n1' and 'n2'" in fault


def test_a_step_in_brackets_is_no_path_and_a_url_is_no_host() -> None:
    names = [host.name for host in open_inventory("node[0-4/2]").hosts]
    assert names == ["node0", "node2", "node4"]
    with pytest.raises(ConfigError, match="got a URL. write hosts as me@node1:2222"):
        open_inventory("ssh://root@node1:2222")


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
def test_hosts_are_selected_by_name_address_and_group(
    expression: str, exclude: str, names: str
) -> None:
    inventory = read((DATA / "good" / "ours.yaml").read_text())
    assert [host.name for host in inventory.select(expression, exclude)] == names.split()


def test_an_unknown_host_is_refused_with_the_nearest() -> None:
    inventory = read(REFERENCE.read_text(), "cluster.yaml")
    with pytest.raises(ConfigError) as caught:
        inventory.select("nod1")
    assert str(caught.value) == (
        "hosts 'nod1': no host 'nod1' in cluster.yaml. known hosts: node[1-4]; did you mean 'node1'?"
    )


def test_an_address_of_two_hosts_selects_both() -> None:
    inventory = read(
        "schema: 1\nhosts:\n  a: {address: h, ssh: {port: 1}}\n  b: {address: h, ssh: {port: 2}}"
    )
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
        ("all:\n  hosts:\n    node1:\n", "yaml"),
        ("---\nlab:\n  hosts:\n", "yaml"),
        ('{"all": {"hosts": {"a": null}}}', "yaml"),
        ("[lab]\nnode1\n", "ini"),
        ("; x\n[lab:vars] # y\na=1\n", "ini"),
        ("node1 ansible_host=10.0.0.1\n", "ini"),
        ("n1\nnode[:3]\n", "ini"),
        ("db-[a:c:2]:2222\n", "ini"),
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


OURS = [
    "schema: 1\n",
    "hosts:\n",
    "  node1:",
    " {gpus: 8}\n",
    "groups: {a: ['@a']}\n",
    "defaults: {}\n",
    "@lab",
]
ANSIBLE = [
    "[lab]\n",
    "[lab:vars]\n",
    "[a:children]\n",
    "lab\n",
    " ansible_host=x",
    "all:\n",
    "  children:\n",
    "    hosts:\n",
]
OTHERS = [
    "node[01:03]",
    "node[a:c]:22",
    " slots=8",
    ":8",
    "n1",
    "\n",
    "  ",
    "# c\n",
    "'",
    '"',
    ",",
    "fd00::1",
]
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
    assert all(
        re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", host.name) for host in inventory.hosts
    )


@settings(deadline=None, max_examples=examples(150))
@given(st.binary(max_size=50))
def test_any_bytes_are_an_inventory_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-inventory"
    path.write_bytes(data)
    try:
        assert read(yamlfile.read_text(path)).hosts
    except OrchError as error:
        assert error.exit_code == 2


KEYS = ["schema", "hosts", "groups", "defaults", "secrets", "gpus", "ssh", "env", "vars", "n1"]
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6)
    ),
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
    assert read("schema: 1\nhosts: {a: {address: 10.0.0.1}}\n").hosts[0].transport == "ssh"
    fault = faults_of(
        lambda: read(text.replace("a3: {transport: openssh}", "a3: {transport: rsh}"))
    )
    assert fault == [
        "lab.yaml:9: hosts.a3.transport: expected one of ssh, openssh, srun, kubectl, got the text 'rsh'"
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("workdri", "workdir"),
        ("pyhton", "python"),
        ("interfaces", "interface"),
        ("datadir", "data_dir"),
        ("runner_pyhton", "runner_python"),
        ("workdir", ""),
        ("dataset", ""),
        ("mpirun", ""),
    ],
)
def test_vars_with_almost_the_name_of_one_that_orch_reads_are_noted(name: str, meant: str) -> None:
    for text in ("defaults: {vars: {%s: /x}}\nhosts: {a: {}}", "hosts: {a: {vars: {%s: /x}}}"):
        notes = read(f"schema: 1\n{text % name}\n").notes
        said = f"vars.{name}: only launch templates read it; did you mean {meant}?"
        assert notes == ((said,) if meant else ())
