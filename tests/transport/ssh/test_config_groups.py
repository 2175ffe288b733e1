"""Names said to be alike, against what ssh itself says of each of them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.transport.ssh import config_groups
from orchestrator.transport.ssh.config_groups import likeness

NAMES = ["node1", "node2", "node10", "gpu-a", "gpu-b", "10.11.0.2", "10.11.0.3", "login.example"]
PATTERNS = [
    "*",
    "node*",
    "node?",
    "gpu-?",
    "10.11.0.*",
    "!node2 node*",
    "login.example gpu-a",
    "!* node1",
    "* !gpu-b",
]
SETTINGS = [
    "User alice",
    "Port 2200",
    "ServerAliveInterval 7",
    "ProxyJump login.example",
    "Ciphers aes128-ctr",
    "Compression=yes",
]


def settings(config: Path, name: str) -> list[str]:
    said = subprocess.run(
        ["ssh", "-G", "-F", str(config), "--", name], capture_output=True, text=True, check=True
    ).stdout
    return said.splitlines()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
@pytest.mark.parametrize("seed", range(8))
def test_names_that_are_alike_have_the_same_settings(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    blocks = [chance.choice(SETTINGS)] if chance.random() < 0.5 else []
    for _ in range(chance.randrange(1, 4)):
        blocks += [
            f"Host {chance.choice(PATTERNS)}",
            *(f"  {line}" for line in chance.sample(SETTINGS, 2)),
        ]
    included = tmp_path / "more.conf"
    included.write_text(f"Host {chance.choice(PATTERNS)}\n\tIdentitiesOnly yes\n")
    config = tmp_path / "config"
    config.write_text(
        "\n".join(["# a comment with %h", *blocks, f"Include {tmp_path}/mo*.conf"]) + "\n"
    )
    groups: dict[object, list[list[str]]] = {}
    for name in NAMES:
        alike = likeness(str(config), tmp_path, name)
        assert alike is not None
        said = settings(config, name)
        assert f"hostname {alike[1]}" in said
        groups.setdefault(alike[0], []).append(
            [line for line in said if not line.startswith(("host ", "hostname "))]
        )
    assert 1 <= len(groups) < len(NAMES)
    for said in groups.values():
        assert all(one == said[0] for one in said)


@pytest.mark.parametrize(
    "text",
    [
        "Match host node1\n  User bob\n",
        "ProxyCommand nc %h %p\n",
        "IdentityFile ${HOME}/key\n",
        "CanonicalizeHostname yes\n",
        'Host "node1"\n',
        "what is this? =\n\x00",
        "Include loop\n",
    ],
)
def test_where_a_name_may_matter_nothing_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(text)
    (tmp_path / ".ssh" / "loop").write_text("Include loop\n")
    assert likeness(str(tmp_path / ".ssh" / "config"), tmp_path, "node1") is None


def test_a_changed_file_changes_what_is_alike(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("User alice\n")
    before = likeness(str(config), tmp_path, "node1")
    config.write_text("User bob\n")
    assert before is not None and likeness(str(config), tmp_path, "node1") not in (None, before)


def test_without_any_configuration_all_names_are_alike(tmp_path: Path) -> None:
    assert likeness("none", tmp_path, "node1") == ((), "node1") and likeness(
        "none", tmp_path, "Node2"
    ) == ((), "node2")


def test_a_block_for_each_host_costs_each_host_one_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "".join(f"Host n{n} 10.0.0.{n}\n  Port {n}\n" for n in range(1, 101))
        + "Host *\n  User alice\n"
    )
    compared: list[str] = []
    chosen = config_groups._chosen
    monkeypatch.setattr(
        config_groups,
        "_chosen",
        lambda patterns, name: compared.append(name) or chosen(patterns, name),
    )
    assert likeness(str(config), tmp_path, "n7") == ((("port", "7"), ("user", "alice")), "n7")
    assert len(compared) == 3, "its own block, the one for all, and what stands above the first"
