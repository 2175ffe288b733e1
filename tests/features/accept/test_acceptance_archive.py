"""A sealed acceptance: verified as it is, refused after any change, signed by a real key of ssh."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.sealing import contents
from orchestrator.errors import ConfigError, DataError
from orchestrator.features.accept.record import AcceptanceDir
from orchestrator.record.archive import Archive, seal, verify
from orchestrator.record.signature import sign, signer
from orchestrator.record.state_file import write_state
from tests.support.acceptances import STEADY, acceptance


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> AcceptanceDir:
    return acceptance(
        tmp_path_factory.mktemp("project") / "runs",
        {1: tuple(0.8 * value for value in STEADY)},
        nodes=3,
    )


@pytest.fixture(scope="module")
def sealed(folder: AcceptanceDir) -> tuple[Path, Archive]:
    target = folder.path / "certificate.tar"
    return target, seal(folder, target, contents)


def test_it_is_verified_with_its_verdicts_and_again_gives_the_same_bytes(
    folder: AcceptanceDir, sealed: tuple[Path, Archive], tmp_path: Path
) -> None:
    target, archive = sealed
    assert verify(target, contents, archive.seal) == archive
    assert archive.tables["verdict"] == "fail" and archive.runs == 5
    assert [node["verdict"] for node in archive.tables["nodes"]] == ["pass", "fail", "pass"]
    (folder.path / "certificate.html").write_text("derived")
    again = tmp_path / "again.tar"
    seal(folder, again, contents)
    assert again.read_bytes() == target.read_bytes()
    with pytest.raises(ConfigError, match="outside the bench"):
        seal(folder, folder.path / "other.tar", contents)


WHOLE = {"host": "node1", "name": "ecc", "verdict": "ok", "found": "on", "expected": "", "hint": ""}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"facts": {"node1": "fast"}, "checks": [WHOLE]},
            "stages.checks.facts: expected facts of each host",
        ),
        ({"facts": [], "checks": [WHOLE]}, "stages.checks.facts: expected facts of each host"),
        ({"checks": [WHOLE]}, "stages.checks.facts: expected facts of each host"),
        ({"facts": {}}, "stages.checks.checks: expected a list of checks, got NoneType"),
        (
            {"facts": {}, "checks": {"a": 1}},
            "stages.checks.checks: expected a list of checks, got dict",
        ),
        (
            {"facts": {}, "checks": [WHOLE, {"host": "node1"}]},
            "stages.checks.checks: expected texts of each check",
        ),
        (
            {"facts": {}, "checks": [WHOLE | {"found": 3}]},
            "stages.checks.checks: expected texts of each check",
        ),
        ({"facts": {}, "checks": ["ecc"]}, "stages.checks.checks: expected texts of each check"),
        ([WHOLE], "stages.checks: expected facts and checks, got list"),
    ],
)
def test_facts_of_a_forged_archive_are_refused_with_what_was_expected(
    content: Any, message: str, tmp_path: Path
) -> None:
    write_state(tmp_path / "checks.json", {"stages": {"checks": content}})
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        AcceptanceDir(tmp_path).checks()
    assert (refused.value.kind, refused.value.where) == (
        "state_damaged",
        str(tmp_path / "checks.json"),
    )


@pytest.mark.parametrize(
    "content", [{"facts": {"node1": {}}, "checks": [WHOLE]}, {}, {"stages": [WHOLE]}]
)
def test_checks_that_are_not_kept_by_stage_are_refused(
    content: dict[str, Any], tmp_path: Path
) -> None:
    write_state(tmp_path / "checks.json", content)
    for act in (
        AcceptanceDir(tmp_path).checks,
        lambda: AcceptanceDir(tmp_path).write_checks("checks", {}, []),
    ):
        with pytest.raises(
            DataError, match="stages: expected facts and checks by stage"
        ) as refused:
            act()
        assert refused.value.kind == "state_damaged"


def test_each_stage_keeps_the_facts_and_checks_that_it_captured_last(tmp_path: Path) -> None:
    folder = AcceptanceDir(tmp_path)
    assert folder.checks() == {}
    folder.write_checks("before", {"node1": {"cpu": "a"}}, [WHOLE])
    folder.write_checks("after", {"node1": {"cpu": "b"}}, [])
    assert folder.checks() == {
        "before": ({"node1": {"cpu": "a"}}, [WHOLE]),
        "after": ({"node1": {"cpu": "b"}}, []),
    }
    folder.write_checks("after", {}, [WHOLE])
    assert folder.checks() == {"before": ({"node1": {"cpu": "a"}}, [WHOLE]), "after": ({}, [WHOLE])}


def test_a_verdict_that_is_changed_with_all_its_digests_is_refused(
    sealed: tuple[Path, Archive], tmp_path: Path
) -> None:
    subprocess.run(["tar", "-xf", sealed[0], "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.iterdir()
    assert verify(unpacked, contents).seal == sealed[1].seal
    record = json.loads((unpacked / "archive.json").read_text())
    record["tables"]["nodes"][1]["verdict"] = "pass"
    (unpacked / "archive.json").write_text(json.dumps(record, indent=1) + "\n")
    digest = subprocess.run(
        ["sha256sum", "archive.json"], cwd=unpacked, capture_output=True, text=True, check=True
    ).stdout
    lines = (unpacked / "SHA256SUMS").read_text().splitlines(keepends=True)
    (unpacked / "SHA256SUMS").write_text("".join([digest, *lines[1:]]))
    with pytest.raises(DataError, match="expected 'pass' as sealed, the logs give 'fail'"):
        verify(unpacked, contents)


def test_a_changed_byte_anywhere_is_refused(sealed: tuple[Path, Archive], tmp_path: Path) -> None:
    data, generator = sealed[0].read_bytes(), random.Random(4)
    for _ in range(15):
        changed = bytearray(data)
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        target = tmp_path / "changed.tar"
        target.write_bytes(changed)
        with pytest.raises((DataError, ConfigError)):
            verify(target, contents)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
def test_a_signature_names_its_signer_and_no_other_seal_or_signer_passes(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        argv = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            name,
            "-f",
            str(tmp_path / name),
        ]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    seal_of_it, other = "a" * 64, "b" * 64
    signature = tmp_path / "certificate.tar.sig"
    signature.write_bytes(sign(seal_of_it, tmp_path / "ours"))
    allowed = tmp_path / "allowed"
    allowed.write_text(f'ops@example.org namespaces="orch" {(tmp_path / "ours.pub").read_text()}')
    assert signer(seal_of_it, signature, allowed) == "ops@example.org"
    with pytest.raises(DataError, match="expected a signature of seal b"):
        signer(other, signature, allowed)
    allowed.write_text(f"!ops@example.org,*@example.org {(tmp_path / 'ours.pub').read_text()}")
    assert signer(seal_of_it, signature, allowed) == "*@example.org", (
        "who is excluded has not signed"
    )
    allowed.write_text(f'ops@example.org namespaces="orch" {(tmp_path / "ours.pub").read_text()}')
    strangers = tmp_path / "strangers"
    strangers.write_text(f"ops@example.org {(tmp_path / 'theirs.pub').read_text()}")
    with pytest.raises(DataError, match="by a signer in"):
        signer(seal_of_it, signature, strangers)
    for garbage in (
        b"",
        b"garbage",
        b"-----BEGIN SSH SIGNATURE-----\nabcd\n-----END SSH SIGNATURE-----\n",
    ):
        (tmp_path / "garbage").write_bytes(garbage)
        with pytest.raises(
            DataError, match="garbage: expected a signature, ssh-keygen says: Couldn't "
        ):
            signer(seal_of_it, tmp_path / "garbage", allowed)
    for text, said in (
        ("", "found none"),
        ("# nobody\n", "found none"),
        ("garbage\n", "ssh-keygen says: .*:1: missing key"),
    ):
        (tmp_path / "nobody").write_text(text)
        with pytest.raises(ConfigError, match=f"nobody: expected lines of allowed signers, {said}"):
            signer(seal_of_it, signature, tmp_path / "nobody")
    by_hand = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        str(allowed),
        "-I",
        "ops@example.org",
        "-n",
        "orch",
        "-s",
        str(signature),
    ]
    done = subprocess.run(
        by_hand, input=f"{seal_of_it}\n", text=True, capture_output=True, check=False
    )
    assert done.returncode == 0 and "Good" in done.stdout
    with pytest.raises(ConfigError, match="expected an ssh key, found no such file"):
        sign(seal_of_it, tmp_path / "none")
    (tmp_path / "no-key").write_text("hello")
    os.chmod(tmp_path / "no-key", 0o600)
    with pytest.raises(ConfigError, match="expected an ssh key, ssh-keygen says"):
        sign(seal_of_it, tmp_path / "no-key")
    (tmp_path / "no-key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="ssh-keygen does not sign"):
        sign(seal_of_it, tmp_path / "no-key")
