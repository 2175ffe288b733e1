"""`orch accept` before it contacts a host: what suites plan on nodes with and without GPUs, and
what it refuses.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.main import program
from orchestrator.cli.options import find_bench, select
from orchestrator.errors import ConfigError, Interrupted, RunError
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.certificate_files import earlier_of
from orchestrator.features.accept.command import begin_acceptance
from orchestrator.features.accept.record import AcceptanceDir
from orchestrator.features.accept.stage_bench import bench_of
from orchestrator.features.accept.suite import suite_of
from orchestrator.features.accept.suite_files import open_suite, suites
from orchestrator.features.accept.suite_plan import plan_suite
from orchestrator.inventory import Host
from orchestrator.plan import Limits
from orchestrator.record.ownership import hold, holder
from tests.support import commands
from tests.support.acceptances import STEADY, SUITE, acceptance, hosts_of

INVENTORY = "schema: 1\ndefaults: {gpus: 8}\nhosts:\n  'gpu[1-4]': {address: '10.0.0.[1-4]'}\n"


def orch(*words: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setenv("ORCH_PROJECT", str(project))
    return CliRunner().invoke(program(), ["accept", *words])


@pytest.mark.parametrize("gpus", [8, 0])
@pytest.mark.parametrize("name", suites())
def test_every_stage_of_a_suite_is_planned_or_says_why_not(name: str, gpus: int) -> None:
    hosts = [Host(host.name, host.address, gpus=gpus, slots=1) for host in hosts_of(4)]
    document = open_suite(name)
    suite = suite_of(document, name, hosts[0].device)
    impossible = {}
    for stage in suite.stages:
        if not stage.checks:
            try:
                plan = bench_of(stage, document, hosts, ())
            except ConfigError as error:
                impossible[stage.name] = error.message
                continue
            assert plan.list_runs() and {cell.device for cell in plan.cells} == {hosts[0].device}
            if stage.name == "all-reduce-in-node":
                assert plan.cells[0].options["group_ranks"] == 8
    on_cpu = {"host-device", "all-reduce-in-node", "peers"} & {stage.name for stage in suite.stages}
    assert set(impossible) == (set() if gpus else on_cpu)


def test_a_plan_contacts_no_host_and_names_what_the_budget_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    done = orch(
        "accept",
        "--hosts",
        str(tmp_path / "cluster.yaml"),
        "--budget",
        "30m",
        "--dry-run",
        project=tmp_path,
        monkeypatch=monkeypatch,
    )
    assert done.exit_code == 0, done.output
    assert "gemm: matrix products, every device at the same time; 8 runs of 4n8g" in done.output
    assert (
        "bar: tflops_rank size=8192, at most 3% slower than peers and 5% slower than before"
        in done.output
    )
    assert "left out: " in done.output and not (tmp_path / "runs").exists()


def test_gpus_that_no_stage_uses_are_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = ["{address: 192.0.2.1, gpus: 8}", "{address: 192.0.2.2, gpus: 4}"]
    inventory = f"schema: 1\nhosts: {{big: {hosts[0]}, small: {hosts[1]}}}\n"
    (tmp_path / "cluster.yaml").write_text(inventory)
    words = ("quick", "--hosts", str(tmp_path / "cluster.yaml"), "--dry-run")
    done = orch(*words, project=tmp_path, monkeypatch=monkeypatch)
    reason = "hosts differ in size, and no stage uses these"
    assert f"  left out: 4 of 8 GPUs of big: {reason}\n" in done.output, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qick",), "no suite 'qick'"),
        (
            ("quick", "--budget", "1s"),
            "--budget: expected at least one stage that can run and fits the budget, found none",
        ),
        (("quick", "--budget", "soon"), "expected a time such as"),
        (("missing.yaml",), "expected a file, found none"),
        (("quick", "--sign", "missing"), "--sign missing: expected an ssh key, found no such file"),
        (
            ("quick", "--sign", "cluster.yaml"),
            "--sign cluster.yaml: expected an ssh key, ssh-keygen says: ",
        ),
        (("quick", "--sign", "cut"), "--sign cut: ssh-keygen does not sign: "),
        (("odd.yaml",), "odd.yaml:1: stages[0].checks[1]: expected names of checks, got 'gpuz'"),
        (("unknown.yaml",), "unknown.yaml:1: stages[0].framework: no framework 'gem'"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    cut_key(tmp_path / "cut")
    (tmp_path / "odd.yaml").write_text(
        "stages: [{name: checks, checks: [ecc, gpuz], framework: gemm}]"
    )
    (tmp_path / "unknown.yaml").write_text("stages: [{name: checks, checks: all, framework: gem}]")
    done = orch(
        *words, "--hosts", str(tmp_path / "cluster.yaml"), project=tmp_path, monkeypatch=monkeypatch
    )
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
    assert not (tmp_path / "runs").exists()


def cut_key(path: Path) -> None:
    """Write what begins like a key and does not sign, without a question as for a passphrase."""
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)


def test_hosts_that_have_passed_of_late_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node3 of four was slow, and node9 is new; the suite passed the others in November 2026."""
    acceptance(tmp_path / "runs", {2: [value * 0.88 for value in STEADY]}, nodes=4)
    (tmp_path / "small.yaml").write_text(SUITE)
    hosts = "{'node[1-4]': {address: '10.0.0.[1-4]'}, node9: {address: 10.0.0.9}}"
    (tmp_path / "cluster.yaml").write_text(f"schema: 1\ndefaults: {{gpus: 1}}\nhosts: {hosts}\n")
    words = ("small.yaml", "--hosts", "cluster.yaml", "--dry-run", "--older-than")
    monkeypatch.chdir(tmp_path)
    done = orch(*words, "11000d", project=tmp_path, monkeypatch=monkeypatch)
    assert "due: node3: a1-small has not passed it" in done.output, done
    assert "due: node9: small has not judged it" in done.output
    assert "small: " in done.output and "; 2 nodes" in done.output
    passed = (*words, "11000d", "--exclude", "node3,node9")
    done = orch(*passed, project=tmp_path, monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "small: " not in done.output
    assert done.output.endswith("accept: small has passed all hosts within 11000d\n")
    done = orch(*words, "1s", project=tmp_path, monkeypatch=monkeypatch)
    assert "due: node[1-2,4]: a1-small is of 2026-11-24" in done.output
    done = orch(*words, "soon", project=tmp_path, monkeypatch=monkeypatch)
    assert "--older-than" in str(done.exception)


def test_a_shape_that_is_too_large_for_these_hosts_is_in_the_plan_and_in_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    stage = "{name: shapes, bench: resnet50, framework: simulated, choices: {nodes: [1, 9]}}"
    (tmp_path / "shapes.yaml").write_text(f"stages: [{stage}]")
    words = (str(tmp_path / "shapes.yaml"), "--hosts", str(tmp_path / "cluster.yaml"), "--dry-run")
    done = orch(*words, project=tmp_path, monkeypatch=monkeypatch)
    assert "  shapes: shapes; 5 runs of 1n8g, no time given (run:)\n" in done.output, done
    reason = f"{tmp_path}/shapes.yaml:1: stages[0].choices.nodes[1]: expected 9 hosts, 4 selected: gpu[1-4]"
    assert f"  left out: shapes, simulated resnet50 9n8g: {reason}\n" in done.output
    selection = select(str(tmp_path / "cluster.yaml"))
    plan = plan_suite(words[0], selection, (), None)
    made = begin_acceptance(plan, selection, (), Limits(), budget_s=None, accept_new=False)
    assert certificate_of(made.folder).not_tested["shapes, simulated resnet50 9n8g"] == reason


@pytest.mark.parametrize(
    ("gate", "said", "status"),
    [
        (
            "quick",
            "gate: first quick on 4 nodes, about 9m36s: checks, gemm, memory, host-device, all-reduce-in-node, peers, pairs\n",
            0,
        ),
        (
            "qick",
            "orch: --gate: no suite 'qick'. available: accept, clustermax, quick, soak; did you mean 'quick'?",
            2,
        ),
        ("", "orch: --gate: expected a value, got an empty text", 2),
    ],
)
def test_a_dry_run_of_a_bench_says_what_its_gate_would_do(
    gate: str, said: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    words = (
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--hosts",
        "cluster.yaml",
        "--dry-run",
        "--gate",
        gate,
    )
    done = commands.orch(tmp_path, *words)
    assert done.returncode == status and said in done.stderr, done


@pytest.mark.parametrize(
    "words",
    [
        ("--gate", "qick"),
        ("--gate", "quick", "--set", "secnds=3"),
        ("--gate", "quick", "--expect", "samples >= 3"),
    ],
)
def test_what_is_wrong_with_a_gate_or_the_bench_after_it_is_said_before_a_host_is_contacted(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    done = commands.orch(
        tmp_path, "bench", "resnet50", "-f", "simulated", "--hosts", "cluster.yaml", *words
    )
    assert done.returncode == 2 and not list(tmp_path.glob("runs/*")), done


def test_hosts_are_compared_with_their_last_acceptance_that_passed(tmp_path: Path) -> None:
    from orchestrator.features.accept.certificate_files import certify

    hosts = hosts_of(3)
    for name, tflops in (("a1-good", {}), ("a2-bad", {0: tuple(0.7 * value for value in STEADY)})):
        certify(AcceptanceDir(acceptance(tmp_path, tflops, nodes=3, name=name).path))
    known = earlier_of(tmp_path, "small", hosts)
    assert known["id"] == "a1-good" and len(next(iter(known["measured"].values()))["units"]) == 3
    page = tmp_path / "a1-good" / "certificate.json"
    page.write_text(page.read_text().replace('"units": {', '"units": {"x": ["0"],', 1))
    assert earlier_of(tmp_path, "small", hosts) == {}
    assert earlier_of(tmp_path, "small", hosts[:2]) == {} == earlier_of(tmp_path, "quick", hosts)


def test_what_is_over_is_printed_again_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.features.accept.certificate_files import certify, seal_certificate
    from orchestrator.record.node_states import GOOD, NodeState, change, node_states

    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    key = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    slow = {1: tuple(0.8 * value for value in STEADY)}
    folder = acceptance(tmp_path / "runs", slow, nodes=3, name="a1-small")
    certify(folder)
    seal_certificate(folder, key)
    states = {"node2": NodeState(GOOD, "10.11.0.3", "repaired", "", "day 1")}
    change(tmp_path / ".orch" / "nodes.json", lambda _: states)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    assert {"certificate.tar", "certificate.tar.sig"} <= set(before)
    done = CliRunner().invoke(program(), ["resume", "a1-small"])
    assert (
        done.exit_code == 5
        and "small on node[1-3]: fail" in done.output
        and "certificate.tar" in done.output
    ), done
    assert {
        path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()
    } == before
    assert node_states(tmp_path / ".orch" / "nodes.json") == states


def test_a_key_that_does_not_sign_hides_no_verdict_and_the_way_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.features.accept.certificate_files import certify, seal_certificate

    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    key = tmp_path / "key"
    cut_key(key)
    folder = acceptance(
        tmp_path / "runs", {1: tuple(0.8 * value for value in STEADY)}, nodes=3, name="a1-small"
    )
    folder.change(lambda record: replace(record, sign=str(key)))
    certify(folder)
    archived = seal_certificate(folder, key)
    assert archived.is_file() and not archived.with_name("certificate.tar.sig").exists()
    done = CliRunner().invoke(program(), ["resume", "a1-small"])
    assert done.exit_code == 5 and "small on node[1-3]: fail" in done.stdout, done
    assert f"orch: --sign {key}: ssh-keygen does not sign: " in done.stderr
    assert (
        f"the certificate is not signed; to sign it: orch archive a1-small --sign {key}"
        in done.stderr
    )
    key.unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    again = CliRunner().invoke(program(), ["resume", "a1-small"])
    assert (
        again.exit_code == 5
        and archived.with_name("certificate.tar.sig").is_file()
        and "not signed" not in again.stderr
    )


def test_one_process_at_a_time_goes_on_with_an_acceptance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    hosts = hosts_of(3)
    lines = "".join(f"  {host.name}: {{address: {host.address}, gpus: 1}}\n" for host in hosts)
    (tmp_path / "cluster.yaml").write_text(f"schema: 1\nhosts:\n{lines}")
    folder = acceptance(tmp_path / "runs", {}, nodes=3, name="a1-small")
    folder.change(
        lambda record: replace(
            record, over={"checks": ""}, inventory=str(tmp_path / "cluster.yaml")
        )
    )
    with hold(folder):
        for words in (
            ("resume", "a1-small"),
            ("archive", "a1-small", "-o", str(tmp_path / "a.tar")),
        ):
            refused = CliRunner().invoke(program(), list(words))
            assert isinstance(refused.exception, RunError), refused
            assert (
                refused.exception.kind == "run_in_use" and "acceptance" in refused.exception.message
            )
    (tmp_path / "cluster.yaml").write_text(
        f"schema: 1\nhosts:\n{lines}".replace(hosts[1].address, "10.9.9.9")
    )
    moved = CliRunner().invoke(program(), ["resume", "a1-small"])
    assert isinstance(moved.exception, ConfigError) and "the address of node2 has changed" in str(
        moved.exception
    )


def test_the_name_of_an_acceptance_stands_for_its_last_bench_and_rm_says_how_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    folder = acceptance(tmp_path / "runs", {}, nodes=3, name="a1-small")
    assert (
        find_bench("a1-small").path
        == folder.path / "a1-small.bench"
        == find_bench("a1-small.bench").path
    )
    with pytest.raises(ConfigError, match="no bench yet"):
        find_bench("")
    with pytest.raises(ConfigError, match="no bench 'xxx"):
        find_bench("x" * 5000)
    folder.change(lambda record: replace(record, over={"checks": ""}))
    assert find_bench("").path == folder.path / "a1-small.bench"
    refused = CliRunner().invoke(program(), ["rm", "-y", "a1-small"])
    assert (
        isinstance(refused.exception, ConfigError)
        and "remove an acceptance with rm -r" in refused.exception.hint
    )
    folder.change(lambda record: replace(record, attempts=()))
    with pytest.raises(ConfigError, match="no stage of this acceptance has begun a bench yet"):
        find_bench("a1-small")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_benches_says_how_to_go_on(number: int, tmp_path: Path) -> None:
    from orchestrator.features.accept.command import hold

    folder = acceptance(tmp_path / "runs", {}, nodes=3, name="a1-small")
    part = folder.path / ".0123456789abcdef.part"
    part.write_text("of a process that was killed")
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as ended, hold(folder):
        os.kill(os.getpid(), number)
    assert (
        ended.value.exit_code == 128 + number
        and ended.value.hint == "to continue: orch resume a1-small"
    )
    assert holder(folder) is None and signal.getsignal(number) == before and not part.exists()
