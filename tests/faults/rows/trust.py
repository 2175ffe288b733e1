"""Whom a connection trusts, and as whom it logs in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import signal
import subprocess
from pathlib import Path

from tests.e2e.rig import GRACE_S, LONG, Controller
from tests.faults.rows.network import behind_a_jump_host
from tests.faults.rows.setup import Server, inventory, on_node, refused, server
from tests.faults.suite import Trial, row
from tests.support import faults, judge

REACH = ("check", "--only", "reach")


def fingerprint(key: Path) -> str:
    """Return a key's fingerprint as ssh-keygen says it."""
    done = subprocess.run(
        ["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


def one_host(controller: Controller, other: Server, node: str, **ssh: object) -> str:
    """Write an inventory of one node by another server; nothing is known of it unless ``ssh`` says
    so. Return its path.
    """
    known = controller.project / "known"
    if "known_hosts" not in ssh:
        known.write_text("")
    address = controller.lab.node(node).address
    settings = {"known_hosts": str(known), "port": other.port, **ssh}
    return inventory(controller, {"one": {"address": address}}, ssh=settings)


@row("T1", "unknown host key")
def unknown_key(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    with server(trial.lab, node) as other:
        hosts = one_host(controller, other, node)
        for words in (
            REACH,
            ("deploy", "-f", "simulated"),
            ("bench", "resnet50", "-f", "simulated", "--no-baseline"),
        ):
            text = refused(controller, *words, "--hosts", hosts, code=3, within_s=12)
            assert (
                text.startswith("orch: one: ")
                and f"ssh-ed25519 {fingerprint(other.host_key)}" in text
            ), text
            assert "orch deploy --accept-new" in text, text
        assert not other.attempts, other.attempts
        assert not (controller.project / ".orch" / "known_hosts").exists()
        accepted = controller.orch("deploy", "--accept-new", "-f", "simulated", "--hosts", hosts)
        assert accepted.code == 0 and other.attempts, accepted
        assert controller.orch(*REACH, "--hosts", hosts).code == 0


@row("T2", "changed host key, with and without accept-new")
def changed_key(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    old = trial.scratch / "old"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(old)], check=True)
    with server(trial.lab, node) as other:
        name = f"[{trial.lab.node(node).address}]:{other.port}"
        users, ours = controller.project / "known", controller.project / ".orch" / "known_hosts"
        ours.parent.mkdir(mode=0o700)
        for file in (users, ours):
            users.write_text("")
            ours.write_text("")
            file.write_text(f"# somebody\n{name} {other.key_of(old)}\n")
            hosts = one_host(controller, other, node, known_hosts=str(users))
            for more in ((), ("--accept-new",)):
                text = refused(controller, *REACH, *more, "--hosts", hosts, code=3, within_s=12)
                assert f"{file}:2 has ssh-ed25519 {fingerprint(old)}" in text, text
                assert f"the host offers ssh-ed25519 {fingerprint(other.host_key)}" in text, text
            assert file.read_text() == f"# somebody\n{name} {other.key_of(old)}\n"
        assert not other.attempts, other.attempts


@row("T3", "first contact with 16 hosts by two controllers at once", limit_s=180)
def first_contacts(trial: Trial) -> None:
    if not trial.full:
        return _first_contacts(trial.controller)
    with trial.own_lab(nodes=16) as controller:
        _first_contacts(controller)
    return None


def _first_contacts(controller: Controller) -> None:
    known = controller.project / "known"
    known.write_text("")
    hosts = inventory(controller, ssh={"known_hosts": str(known)})
    racing = [controller.start(*REACH, "--accept-new", "--hosts", hosts) for _ in range(2)]
    ended = [controller.end(process, 60) for process in racing]
    assert [done.code for done in ended] == [0, 0], ended
    store = controller.project / ".orch" / "known_hosts"
    lines = store.read_text().splitlines()
    keys = {node.address: Path(node.folder / "host_key") for node in controller.lab.nodes}
    assert sorted(line.split()[0] for line in lines) == sorted(keys), lines
    for line in lines:
        address, kind, blob = line.split()
        assert kind == "ssh-ed25519"
        fingerprint = "SHA256:" + base64.b64encode(
            hashlib.sha256(base64.b64decode(blob)).digest()
        ).decode().rstrip("=")
        derived = subprocess.run(
            ["ssh-keygen", "-lf", str(keys[address])], capture_output=True, text=True, check=True
        )
        assert fingerprint == derived.stdout.split()[1], line
    assert store.stat().st_mode & 0o777 == 0o600 and known.read_text() == ""
    assert {path.name for path in store.parent.iterdir()} <= {
        "known_hosts",
        "known_hosts.lock",
        "project.json",
    }
    assert controller.orch(*REACH, "--hosts", hosts).code == 0


def hashed(name: str) -> str:
    """Return a name as OpenSSH hashes it."""
    salt = b"0123456789abcdefghij"
    mac = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"


FORMS = {
    "port": ("[{address}]:{port} {key}", ""),
    "hashed": ("{hashed} {key}", ""),
    "wildcard and comment": ("[10.11.0.?]:* {key} root@there", ""),
    "another host's damage": ("lab7 ssh-ed25519 AAAA\n[{address}]:{port} {key}", ""),
    "no name of it": ("10.99.0.1 {key}", "the host key is not known"),
    "hashed, changed": ("{hashed} {other}", "the host key changed"),
    "revoked": ("[{address}]:{port} {key}\n@revoked * {key}", "marked revoked"),
    "authority and key": ("@cert-authority *.example.org,[{address}]:{port} {other}\n[{address}]:{port} {key}", ""),
    "authority alone": ("@cert-authority *.example.org,[{address}]:{port} {other}", "the host key is not known"),
    "unknown mark": ("@maybe [{address}]:{port} {key}", "expected a known mark"),
    "torn": ("[{address}]:{port} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA", "the line about this host is damaged"),
    "other type": ("[{address}]:{port} {ecdsa}", "a different type than the known one"),
}  # fmt: skip


@row("T4", "marks, hashes, ports and key types in known-hosts files", limit_s=120)
def forms_of_lines(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    for name, kind in (("other", "ed25519"), ("ecdsa", "ecdsa")):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(trial.scratch / name)], check=True
        )
    cases = list(FORMS) if trial.full else trial.random.sample(list(FORMS), 3)
    with server(trial.lab, node) as other:
        address = trial.lab.node(node).address
        words = {
            "address": address,
            "port": other.port,
            "hashed": hashed(f"[{address}]:{other.port}"),
        }
        keys = {name: other.key_of(trial.scratch / name) for name in ("other", "ecdsa")}
        for case in cases:
            lines, message = FORMS[case]
            known = controller.project / "known"
            known.write_text(lines.format(**words, **keys, key=other.key_of(other.host_key)) + "\n")
            hosts = one_host(controller, other, node, known_hosts=str(known))
            before = len(other.attempts)
            for more in ((), ("--accept-new",)):
                if case in ("no name of it", "authority alone") and more:
                    continue
                code = 2 if case == "torn" else 3 if message else 0
                text = refused(controller, *REACH, *more, "--hosts", hosts, code=code, within_s=12)
                assert message in text, f"{case}: {text}"
            if message:
                assert len(other.attempts) == before, f"{case}: {other.attempts}"


WEAK = {
    "cipher": ("Ciphers 3des-cbc,aes128-cbc", "ed25519", "the host offers 3des-cbc, aes128-cbc"),
    "mac": ("MACs hmac-md5,hmac-sha1", "ed25519", "the host offers hmac-md5, hmac-sha1"),
    "kex": (
        "KexAlgorithms diffie-hellman-group1-sha1",
        "ed25519",
        "the host offers diffie-hellman-group1-sha1",
    ),
    "host key": ("HostKeyAlgorithms ssh-rsa", "rsa", "the host offers ssh-rsa"),
}


@row("T5", "a host that offers only weak algorithms")
def weak_algorithms(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    for number, case in enumerate(WEAK if trial.full else trial.random.sample(list(WEAK), 2)):
        option, key_type, message = WEAK[case]
        with server(trial.lab, node, option, port=2210 + number, key_type=key_type) as other:
            hosts = one_host(controller, other, node)
            text = refused(
                controller, *REACH, "--accept-new", "--hosts", hosts, code=3, within_s=12
            )
            assert message in text and "accepted are" in text, f"{case}: {text}"
            assert not other.attempts, other.attempts


@row("T6", "wrong, locked, open, missing key, and a server whose log-in hangs", limit_s=150)
def credentials(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    keys = {name: trial.scratch / name for name in ("stranger", "locked", "open")}
    for name, path in keys.items():
        passphrase = "a passphrase" if name == "locked" else ""
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True
        )
    keys["open"].chmod(0o644)
    remedies = {
        str(keys["stranger"]): ("the host refused key", "authorized_keys"),
        str(keys["locked"]): ("has a passphrase", "ssh-add"),
        str(keys["open"]): ("can be read by others (mode 0644)", f"chmod 600 {keys['open']}"),
        str(trial.scratch / "none"): ("no such file", "ssh-keygen"),
    }
    texts = set()
    with server(trial.lab, node) as other:
        for key, (problem, remedy) in remedies.items():
            hosts = one_host(controller, other, node, key=key)
            before = len(other.attempts)
            local = key != str(
                keys["stranger"]
            )  # what is known before the first packet is refused before it
            text = refused(
                controller,
                *REACH,
                "--accept-new",
                "--hosts",
                hosts,
                code=2 if local else 3,
                within_s=12,
            )
            assert problem in text and remedy in text, text
            texts.add(text)
            tried = {
                word for line in other.attempts[before:] for word in re.findall(r"SHA256:\S+", line)
            }
            assert tried <= (
                {fingerprint(keys["stranger"])} if key == str(keys["stranger"]) else set()
            ), tried
    assert len(texts) == 4
    if trial.full:
        _hanging_log_in(trial, controller, node)


def _hanging_log_in(trial: Trial, controller: Controller, node: str) -> None:
    """A key service that does not answer: sshd waits for the command that it asks for keys."""
    home = trial.lab.node(node).home
    script = home / "hang.sh"
    script.write_text("#!/bin/sh\necho $$ >> /run/hang.pid\nexec sleep 300\n")
    script.chmod(0o755)
    on_node(
        trial.lab,
        node,
        "cp ~/hang.sh /run/hang.sh && chown root /run/hang.sh && chmod 755 /run /run/hang.sh",
    )
    options = (
        "AuthorizedKeysFile none",
        "AuthorizedKeysCommand /run/hang.sh",
        "AuthorizedKeysCommandUser root",
    )
    with server(trial.lab, node, *options, port=2230) as other:
        hosts = one_host(controller, other, node)
        text = refused(controller, *REACH, "--accept-new", "--hosts", hosts, code=3, within_s=35)
        assert "no answer to the authentication within 30 s" in text and "PAM" in text, text
    on_node(trial.lab, node, "kill $(cat /run/hang.pid); rm /run/hang.pid", check=False)


@row(
    "T7",
    "another server takes a node's address in mid-run: directly, behind a jump host, with accept-new",
)
def stranger_in_mid_run(trial: Trial) -> None:
    """The first connection was right, so only the re-connection meets the stranger."""
    controller, (jump, *others) = trial.controller, trial.nodes
    victim, words = trial.random.choice(others), ["--nodes", "3", "--gpus", "1", "--lease", "10"]
    if trial.random.choice((True, False)):
        addresses = {name: trial.lab.node(name).address for name in others}
        words += [
            "--hosts",
            str(behind_a_jump_host(controller, trial.lab.node(jump).address, addresses)),
        ]
    else:
        words += ["--hosts", ",".join(others)]
    process = controller.start(
        "bench", *LONG, *words, *trial.random.choice(((), ("--accept-new",)))
    )
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned"
    )
    log = f".orch-node/nodes/{others[0]}/runs/{controller.runs[-1].name}/logs/rank-0.out"
    first = trial.lab.node(others[0]).home / log
    judge.wait_for(
        lambda: first.exists() and b"orch step=3 " in first.read_bytes(),
        20,
        "step 3 was not reached",
    )
    sessions = controller.sessions(victim)
    faults.sshd_stop(trial.lab, victim)
    with server(trial.lab, victim, port=22) as stranger:
        for session in sessions:
            os.kill(session.pid, signal.SIGKILL)
        done = controller.end(process, 30)
        contacts = [line for line in stranger.log.splitlines() if "Connection from" in line]
        attempts = stranger.attempts
        offered = fingerprint(stranger.host_key)
    faults.sshd_start(trial.lab, victim)
    assert (
        done.code == 3 and f"orch: {victim}: " in done.err and "the host key changed" in done.err
    ), done
    assert (
        f"the host offers ssh-ed25519 {offered}" in done.err and "no sign of life" not in done.err
    ), done
    error = controller.manifest()["outcome"]["error"]
    assert (error["kind"], error["host"]) == ("host_key_changed", victim), error
    assert len(contacts) == 1 and not attempts, (contacts, attempts)
    trial.stopped_s = judge.wait_until_clean(trial.lab, 10 + GRACE_S + 3.0)
    collected = controller.orch("collect")
    assert collected.code == 0, collected
    trial.keep(*others)
