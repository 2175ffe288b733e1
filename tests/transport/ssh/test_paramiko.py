"""The parts of paramiko that are not its interface and that orch builds on: a version that lacks
one fails here by its name.

Paramiko may change them in any release, so `setup.cfg` excludes the next major one until these
tests, and those of
`tests/contract`, have passed with it.
"""

from __future__ import annotations

import ast
import inspect
import socket
from functools import cache
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko import agent, buffered_pipe, channel, client, common, packet, pkey, transport
from paramiko.message import Message

import orchestrator.transport.ssh

PACKAGE = Path(orchestrator.transport.ssh.__file__).parent
# By class: its attributes and what each is for.
USED: dict[type[Any], dict[str, str]] = {
    transport.Transport: {
        "_active_check_timeout": "waiting without ten wake-ups a second",
        "_kex_info": "curve25519-sha256 under its final name",
        "_preferred_kex": "offering safe algorithms alone",
        "_preferred_ciphers": "offering safe algorithms alone",
        "_preferred_macs": "offering safe algorithms alone",
        "_preferred_keys": "offering safe algorithms alone, the known key first",
        "_preferred_pubkeys": "signing with safe algorithms alone",
        "preferred_keys": "excluding host certificates, which paramiko does not verify",
        "_really_parse_kex_init": "naming the algorithms that a server offers",
        "_send_user_message": "not waiting for itself in a key re-exchange",
        "_parse_newkeys": "sending what waited for a key re-exchange",
        "_parse_channel_open_failure": "a server's reason for a refused session",
        "_channel_handler_table": "receiving data in the connection's own thread",
        "_unlink_channel": "freeing a closed channel",
    },
    channel.Channel: {
        "_close_internal": "sending the last message of a channel after all others",
        "_check_add_window": "letting the server send as much as was read",
        "_event_pending": "waiting for the start of a command with a limit",
    },
    packet.Packetizer: {
        "_trigger_rekey": "exchanging keys again after a gigabyte",
        "_check_keepalive": "keep-alives",
        "need_rekey": "exchanging keys again",
        "start_handshake": "one limit for a handshake, without a thread",
        "set_inbound_cipher": "decrypting AES-GCM in place",
        "reset_seqno_in": "strict key exchange",
        "read_message": "passing on adjacent packets as one",
        "REKEY_BYTES": "exchanging keys again",
        "REKEY_BYTES_OVERFLOW_MAX": "refusing a server that does not exchange keys",
    },
    agent.AgentSSH: {"_connect": "asking an agent with a limit", "_close": "leaving an agent"},
    client.SSHClient: {"set_missing_host_key_policy": "refusing unknown keys, should anybody ask"},
}
# By class: attributes that an object gets when it is made.
MADE: dict[type[Any], tuple[str, ...]] = {
    transport.Transport: (
        "active", "initial_kex_done", "clear_to_send", "remote_version", "local_cipher", "server_extensions", "banner_timeout",
        "auth_timeout",
    ),
    channel.Channel: (
        "in_buffer", "in_stderr_buffer", "in_window_threshold", "remote_chanid", "lock", "status_event", "exit_status", "event",
        "event_ready", "transport",
    ),
    agent.AgentSSH: ("_conn",),
    client.SSHClient: ("_transport",),
}  # fmt: skip


def missing(owner: type[Any], name: str, use: str) -> str:
    place = f"paramiko {paramiko.__version__} has no {owner.__name__}.{name}"
    return f"{place}, which orch needs for {use}: adapt {PACKAGE}, or lower the bound in setup.cfg"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in USED.items() for name in names]
)
def test_what_orch_overrides_and_calls_is_there(owner: type[Any], name: str) -> None:
    assert hasattr(owner, name), missing(owner, name, USED[owner][name])


@pytest.mark.parametrize("owner", MADE)
def test_an_object_has_what_orch_reads_and_sets(owner: type[Any]) -> None:
    near, far = socket.socketpair()
    with near, far:
        arguments = {transport.Transport: (near,), channel.Channel: (0,)}.get(owner, ())
        one = owner(*arguments)
        lacking = [name for name in MADE[owner] if not hasattr(one, name)]
        assert not lacking, [missing(owner, name, "the state of a connection") for name in lacking]


def test_methods_take_what_orch_passes() -> None:
    expected = {
        transport.Transport._really_parse_kex_init: ["self", "m", "ignore_first_byte"],
        transport.Transport._send_user_message: ["self", "data"],
        transport.Transport._parse_newkeys: ["self", "m"],
        transport.Transport._parse_channel_open_failure: ["self", "m"],
        transport.Transport._unlink_channel: ["self", "chanid"],
        channel.Channel._check_add_window: ["self", "n"],
        agent.AgentSSH._connect: ["self", "conn"],
    }
    for method, names in expected.items():
        taken = list(inspect.signature(method).parameters)
        assert taken == names, (
            f"paramiko {paramiko.__version__}: {method.__qualname__} takes {taken}, orch passes {names}"
        )
    keys = {"block_engine", "block_size", "mac_engine", "mac_size", "mac_key"} | {"aead", "iv_in"}
    taken = set(inspect.signature(packet.Packetizer.set_inbound_cipher).parameters)
    assert keys <= taken, (
        f"paramiko {paramiko.__version__}: set_inbound_cipher lacks {keys - taken}, by which AES-GCM is decrypted"
    )


def test_the_handlers_of_a_channel_are_those_that_orch_replaces() -> None:
    table = transport.Transport._channel_handler_table
    for kind in (
        common.MSG_CHANNEL_DATA,
        common.MSG_CHANNEL_EOF,
        common.MSG_CHANNEL_CLOSE,
        common.MSG_CHANNEL_REQUEST,
    ):
        assert callable(table.get(kind)), (
            f"paramiko {paramiko.__version__} handles message {kind} of a channel elsewhere"
        )
    assert {"feed", "close", "set_event", "__len__"} <= set(dir(buffered_pipe.BufferedPipe))
    assert {
        "add_int",
        "add_string",
        "add_boolean",
        "add_byte",
        "rewind",
        "get_int",
        "get_string",
    } <= set(dir(Message))
    assert hasattr(pkey, "UnknownKeyType")


def test_every_private_name_that_is_used_is_listed_here() -> None:
    ours = [
        node
        for path in (*PACKAGE.glob("*.py"), *PACKAGE.parent.glob("*.py"))
        for node in ast.walk(tree(path))
    ]
    defined = {node.name for node in ours if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {
        node.attr
        for node in ours
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    used = {
        node.attr
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
    }
    listed = {name for names in (*USED.values(), *MADE.values()) for name in names}
    assert used - defined <= listed, used - defined - listed
    assert {name for name in listed if name.startswith("_")} <= used | defined | assigned()


def assigned() -> set[str]:
    """Return the names that the package's classes assign in their bodies."""
    nodes = [node for path in PACKAGE.glob("*.py") for node in ast.walk(tree(path))]
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
