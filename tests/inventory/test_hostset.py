"""Expressions of hosts: what they mean, what is refused, and that folding undoes expanding."""

from __future__ import annotations

import re
from itertools import product

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.inventory import hostset
from orchestrator.inventory.hostset import (
    MAX_HOSTS,
    alias_of,
    check_address,
    check_alias,
    expand,
    fold,
    is_ipv6,
    nearest,
    same_machine_key,
)
from tests.support.examples import examples

GROUPS = {
    "lab": ["node[1-2]", "@old"],
    "old": ["gpu[01-02],node2"],
    "empty": [],
    "a": ["@b"],
    "b": ["@c"],
    "c": ["x,@a"],
}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("node1", "node1"),
        ("b,a,b", "b a"),
        (" a , b ", "a b"),
        ("gpu[01-04]", "gpu01 gpu02 gpu03 gpu04"),
        ("gpu[08-10]", "gpu08 gpu09 gpu10"),
        ("gpu[8-10]", "gpu8 gpu9 gpu10"),
        ("n[0-8/4]", "n0 n4 n8"),
        ("n[3,1-2,1]", "n3 n1 n2"),
        ("n[7]x", "n7x"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("10.11.0.[2-3,5]", "10.11.0.2 10.11.0.3 10.11.0.5"),
        ("10.11.0.2-4", "10.11.0.2 10.11.0.3 10.11.0.4"),
        ("10.11.0.9-10", "10.11.0.9 10.11.0.10"),
        ("node1-4", "node1-4"),
        ("fd00::1-4", "fd00::1-4"),
        ("fd00::1,2001:db8::a01", "fd00::1 2001:db8::a01"),
        ("@lab", "node1 node2 gpu01 gpu02"),
        ("gpu02,@lab", "gpu02 node1 node2 gpu01"),
        ("@empty,z", "z"),
        ("@old,@old", "gpu01 gpu02 node2"),
    ],
)
def test_an_expression_gives_its_names_once_and_in_written_order(
    expression: str, names: str
) -> None:
    assert expand(expression, GROUPS) == names.split()


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("", "expected a host, got an empty text", "node1"),
        ("  ", "expected a host, got an empty text", "node1"),
        ("a,,b", "each side of a comma", "node1"),
        ("a,", "each side of a comma", "node1"),
        ("gpu[1-4", "paired brackets", "node[1-4]"),
        ("gpu1-4]", "paired brackets", "node[1-4]"),
        ("gpu[[1-4]]", "paired brackets", "node[1-4]"),
        ("gpu[]", "a number or a range between brackets, got ''", "node[1-4]"),
        ("gpu[a-c]", "a number or a range between brackets, got 'a-c'", "node[1-4]"),
        ("gpu[1-2-3]", "a number or a range", "node[1-4]"),
        ("gpu[-1]", "a number or a range", "node[1-4]"),
        ("gpu[1:4]", "a number or a range between brackets, got '1:4'", "node[1-4]"),
        ("gpu[4-1]", "an ascending range, its ends padded to one width, got '4-1'", "node[1-4]"),
        ("gpu[01-4]", "an ascending range, its ends padded to one width, got '01-4'", "node[1-4]"),
        ("gpu[1-4/0]", "an ascending range", "node[1-4]"),
        ("gpu[١-٤]", "a number or a range", "node[1-4]"),
        ("[fd00::1]", "a range between brackets", "without brackets"),
        ("[fd00::1]:22", "a range between brackets", "without brackets"),
        ("@lap", "a known group, got 'lap'", "did you mean 'lab'?"),
        ("@a", "without a loop, got a → b → c → a", "remove one of them"),
        ("10.0.0.5-2", "an ascending range", "node[1-4]"),
        ("n[1-10001]", "at most 10000 hosts, got 10001", "split"),
        ("n[1-999999999]", "at most 10000 hosts, got 999999999", "split"),
        ("n[1-999][1-999][1-999]", "at most 10000 hosts, got 997002999", "split"),
        ("a[1-9000],b[1-9000]", "at most 10000 hosts, got more", "split"),
        (",".join(["n[1-9999]"] * 20), "at most 10000 hosts, got more", "split"),
        ("n[" + "9" * 5000 + "]", "a number or a range", "node[1-4]"),
    ],
)
def test_a_bad_expression_is_a_configuration_error_with_place_and_hint(
    expression: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(expression, GROUPS)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.kind == "config_invalid"
    assert caught.value.where.startswith("hosts '")
    assert len(str(caught.value)) < 400


def test_ten_thousand_hosts_are_allowed() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


def test_groups_in_groups_are_cheap_and_end_at_a_depth() -> None:
    doubling = {f"g{n}": [f"@g{n + 1}"] * 2 for n in range(40)} | {"g40": ["node1"]}
    assert expand("@g0", doubling) == ["node1"]
    endless = {f"g{n}": [f"@g{n + 1}"] for n in range(3000)} | {"g3000": ["node1"]}
    with pytest.raises(ConfigError, match="at most 50 deep"):
        expand("@g0", endless)


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,6}[a-z0-9])?", fullmatch=True).filter(
    lambda name: not hostset._ADDRESS_RANGE.search(name)
)
NUMBERED = st.builds(
    lambda stem, number, width, tail: f"{stem}{number:0{width}d}{tail}",
    st.sampled_from(["gpu", "node", "r1-n", "10.11.0.", "10.11.1.", ""]),
    st.integers(0, 120),
    st.integers(1, 4),
    st.sampled_from(["", "", "a", ".lab", "-ib0"]),
)


@settings(deadline=None)
@given(st.lists(st.one_of(NUMBERED, NAMES, st.ip_addresses(v=6).map(str)), max_size=30))
def test_fold_undoes_expand(names: list[str]) -> None:
    folded = fold(names)
    assert set(expand(folded) if names else []) == set(names)
    assert fold(expand(folded) if names else []) == folded


@settings(deadline=None)
@given(st.lists(st.one_of(NUMBERED, NAMES), max_size=30))
@example(["6", "07"])
@example(["n9", "n10", "n011"])
def test_sets_of_one_number_are_folded_as_clustershell_folds_them(names: list[str]) -> None:
    names = [name for name in names if len(re.findall("[0-9]+", name)) < 2]
    nodes = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = None  # the user's own settings of ClusterShell may have another
    assert fold(names) == str(nodes)


@pytest.mark.parametrize("stem", ["r{}n{:02}", "10.0.{}.{}", "{:03}-a{}-b{}"])
def test_a_rectangle_of_hosts_is_one_expression(stem: str) -> None:
    ranges = [range(8, 8 + count) for count in (3, 5, 2)[: stem.count("{")]]
    names = [stem.format(*numbers) for numbers in product(*ranges)]
    nodes = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = None
    assert fold(names) == str(nodes)


def test_a_set_that_is_no_rectangle_is_folded_along_its_last_numbers() -> None:
    assert fold(["r1n1", "r1n2", "r2n2", "r3n2"]) == "r[2-3]n2,r1n[1-2]"


SPANS = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 4), st.integers(1, 3))


@settings(deadline=None)
@given(
    st.sampled_from(["n", "r2-n", "10.1.0."]),
    st.lists(SPANS, min_size=1, max_size=3),
    st.sampled_from(["", "-x"]),
)
def test_brackets_mean_what_clustershell_says_they_mean(
    head: str, spans: list[tuple[int, int, int, int]], tail: str
) -> None:
    text = ",".join(
        f"{first:0{width}d}-{first + more:0{width}d}/{step}" for first, more, width, step in spans
    )
    expression = f"{head}[{text}]{tail}"
    assert set(expand(expression)) == set(NodeSet(expression, resolver=RESOLVER_NOGROUP))


@settings(deadline=None, max_examples=examples(300))
@given(st.text(alphabet="abn019[]-,/@:. ", max_size=25))
def test_any_text_expands_or_is_refused(expression: str) -> None:
    try:
        names = expand(expression, GROUPS)
    except ConfigError:
        return
    assert len(set(names)) == len(names) > 0 or "@empty" in expression


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("gpu01 gpu02 gpu03 node7", "gpu[01-03],node7"),
        ("10.11.0.3 10.11.0.2 10.11.0.5", "10.11.0.[2-3,5]"),
        ("fd00::1 fd00::2", "fd00::1,fd00::2"),
        ("n1 fd00::2 n2", "n[1-2],fd00::2"),
        pytest.param(
            f"n1 n{'9' * 100} n2", f"n[1-2],n{'9' * 100}", id="more digits than a number has"
        ),
        ("", ""),
    ],
)
def test_fold_writes_sets_as_people_do(names: str, folded: str) -> None:
    assert fold(names.split()) == folded


@pytest.mark.parametrize(
    ("word", "choices", "meant"),
    [
        ("modle", "model nodes label", "model"),
        ("model", "nodes order label", ""),
        ("stpes", "steps shape stages", "steps"),
        ("cup", "cpu gpu cuda", "cpu"),
        ("fp61", "fp32 fp16 bf16", "fp16"),
        ("batchsize", "batch_size steps", "batch_size"),
        ("mean", "median/median mean/mean", "mean/mean"),
        ("integer", "float int bool", "int"),
        ("--dytpe", "--dtype --type", "--dtype"),
        ("--forget", "--out --good --note", ""),
        ("--last", "--plot --html", ""),
    ],
)
def test_what_is_near_has_most_letters_of_the_word(word: str, choices: str, meant: str) -> None:
    assert nearest(word, choices.split()) == (f"; did you mean {meant!r}?" if meant else "")


def test_nearest_suggests_only_what_is_near() -> None:
    assert nearest("gpu", ["gpus", "slots"]) == "; did you mean 'gpus'?"
    assert nearest("colour", ["gpus", "slots"]) == ""
    assert nearest("GPT-tiny", ["moe-tiny", "gpt-tiny"]) == "; did you mean 'gpt-tiny'?"
    assert nearest("x", []) == ""
    assert nearest("docker", ["docker", "podman"]) == "", "what was meant is what was written"


@pytest.mark.parametrize(
    "name", ["node1", "gpu-01.lab.example.org", "10.11.0.2", "_x", "a" * 128, "condor", "nullity"]
)
def test_a_good_alias_passes(name: str) -> None:
    check_alias(name, "here")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "empty"),
        ("..", "letters, digits"),
        (".", "letters, digits"),
        ("a/b", "letters, digits"),
        (".a", "letters, digits"),
        ("-a", "letters, digits"),
        ("a.", "letters, digits"),
        ("a ", "without spaces"),
        ("a\x1b[2J", "without spaces and control"),
        ("a\x00", "without spaces and control"),
        ("a\u202e", "without spaces and control"),
        ("a\udcff", "without spaces and control"),
        ("ｎode", "letters, digits"),
        ("no\u0301de", "letters, digits"),
        ("a" * 129, "at most 128 bytes, got 129 bytes"),
        ("é" * 150, "at most 128 bytes, got 300 bytes"),
        ("all", "reserved"),
        ("CON", "reserved"),
        ("lpt1.txt", "reserved"),
        ("me@a", "ssh: {user: …}"),
        ("@lab", "under groups:"),
        ("a:22", "ssh: {port: …}"),
        ("fe80::1%eth0", "leave out the zone"),
        ("[fe80::1%eth0]:22", "without brackets"),
    ],
)
def test_a_bad_alias_is_refused_with_its_place(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_alias(name, "here:3")
    assert text in str(caught.value)
    assert caught.value.where == "here:3"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address",
    [
        "10.11.0.2",
        "fd00::1",
        "::1",
        "node1",
        "node1.lab.",
        "a_b",
        "1e3",
        "xn--sterreich-z7a.at",
        "gate+node1",
        "gate/node1",
    ],
)
def test_a_good_address_passes(address: str) -> None:
    check_address(address, "here")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.11",
        "1",
        "10.0.0.256",
        "010.0.0.1",
        "-a",
        "a b",
        "a\n",
        "$(id)",
        "a" * 254,
        "a..b",
        "fe80::1%e",
        "+a",
        "/a",
        "a+",
        "a/",
    ],
)
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="^here: expected an"):
        check_address(address, "here")


@given(st.ip_addresses(v=6).map(str))
def test_the_alias_of_an_ipv6_address_is_a_good_one(address: str) -> None:
    assert is_ipv6(address)
    check_alias(alias_of(address), "here")
    assert same_machine_key(address) == same_machine_key(address.upper())
