"""`orch accept sentinel`: write the node test as one file, and say where to put it.

It is the node's side of acceptance between acceptances: prologs, epilogs, health checks and cron
run it, and no controller is there (`remote/noderun/node_test.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer

from orchestrator.errors import ConfigError
from orchestrator.features.accept.suite import Reference, references_of
from orchestrator.features.accept.suite_files import open_references
from orchestrator.plan.payload import node_program, pack, payload_bytes
from orchestrator.version import __version__

NAME = "sentinel"
FILE = "orch-node-test"
_FIRST_LINE = "#!/usr/bin/env python3\n"
_SECOND_LINE = "# orch-node-test, one file of orch"
_PROGRAMS = (
    "device_test.py", "gemm.py", "host_device.py", "memory_bandwidth.py", "device_bench.py", "known_values.py", "trainer.py",
    "rank_progress.py", "torch_ranks.py", "torch_timing.py",
)  # fmt: skip
_AT: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("gemm", "gemm", "tflops_rank", {"dtype": "bf16", "size": "8192"}),
    ("gemm", "gemm", "tflops_rank", {"dtype": "fp16", "size": "8192"}),
    ("memory", "memory_bandwidth", "bandwidth_rank", {"dtype": "fp64", "kernel": "triad"}),
)
"""The figures of suites/references that the node test measures too: its metric, and framework,
metric and keys there. Copies are left out: their figures are of a GPU alone, and here all share the
host."""


_NO_HOST = "it contacts no host: copy the file to each node, for example with scp"
_NO_RUN = "it starts no run: orch-node-test --limit says how long a look may take"
_INSTEAD: dict[str, str] = {
    "hosts": _NO_HOST,
    "exclude": _NO_HOST,
    "accept_new": _NO_HOST,
    "skip_unreachable": _NO_HOST,
    "with_suspects": _NO_HOST,
    "debug": _NO_HOST,
    "budget": "orch-node-test --seconds says how long a look takes",
    "older_than": "orch-node-test --interval says how often it measures",
    "lease": _NO_RUN,
    "stop_grace": _NO_RUN,
    "first_line_timeout": _NO_RUN,
    "stall_timeout": _NO_RUN,
    "wait": "orch-node-test --interval says how often it measures, and it leaves busy nodes alone",
    "wait_limit": "orch-node-test --interval says how often it measures, and it leaves busy nodes alone",
    "sign": "sign the file that it writes: ssh-keygen -Y sign -n file -f KEY orch-node-test",
    "dry_run": "it only writes a file; on a node, orch-node-test --show says what it would do",
    "json": "on a node, orch-node-test --json prints the evidence",
}
"""What to do instead of each option of a suite that would have no effect."""


def refuse_options(names: Iterable[str]) -> None:
    """Raise ConfigError for the first of these options that belongs to suites alone."""
    for name in names:
        if name in _INSTEAD:
            raise ConfigError(
                f"expected a suite to run, got {NAME}, which only writes a program",
                where=f"--{name.replace('_', '-')}",
                hint=_INSTEAD[name],
            )


def write_node_test(path: Path, bases: Sequence[Path]) -> None:
    """Write the program, and print how to use it. Raises ConfigError if another file is there."""
    if path.exists() and _SECOND_LINE not in path.read_bytes()[:200].decode("utf-8", "replace"):
        raise ConfigError("expected no file, or an earlier orch-node-test", where=str(path))
    try:
        path.write_text(node_test_source(bases), encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", where=str(path)) from None
    typer.echo("\n".join(_usage(path)))


def node_test_source(bases: Sequence[Path]) -> str:
    """Return the node test with the programs that time devices, and the reference figures."""
    programs = {name: pack(payload_bytes(name)) for name in _PROGRAMS}
    figures = [
        row for document in open_references(bases) for row in _figures(references_of(document))
    ]
    data = f"\nPROGRAMS = {json.dumps(programs, indent=1)}\nREFERENCES = {json.dumps(figures)}\n"
    head = f"{_FIRST_LINE}{_SECOND_LINE} {__version__}: orch-node-test --help\n"
    source = node_program("node_test").decode().replace("\f", "")
    return f"{head}{source}{data}\nnode_test_main(PROGRAMS, REFERENCES)\n"


def _figures(references: Sequence[Reference]) -> Iterator[tuple[str, str, float, float]]:
    """Yield pattern of names, metric, value and tolerance, bf16 before fp16."""
    for name, framework, metric, at in _AT:
        for known in references:
            if (known.framework, known.metric, known.at) == (framework, metric, at):
                yield known.device, name, known.value, known.tolerance


def _usage(path: Path) -> Iterator[str]:
    at = "/usr/local/sbin/orch-node-test"
    drain = 'scontrol update NodeName="$ORCH_NODE" State=DRAIN Reason="$ORCH_DEVICE $ORCH_REASON"'
    log = 'logger -p user.err "$ORCH_DEVICE: $ORCH_REASON"'
    taint = 'kubectl taint node "$ORCH_NODE" --overwrite orch-node-test=failed:NoSchedule'
    yield f"{path}: one file, for Python 3.6 or newer; it needs PyTorch in the Python of --python"
    yield ""
    yield "Copy it to each node, look once by hand, and read what a hook would run:"
    yield f"  {at} --python /opt/venv/bin/python --json"
    yield f"  {at} --show --on-fail '{drain}'"
    yield ""
    yield "Slurm, for HealthCheckProgram, Epilog or Prolog of slurm.conf:"
    yield "  #!/bin/sh\n  # /etc/slurm/node-test.sh"
    yield "  export PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF=/etc/slurm/slurm.conf"
    yield f"  {at} --python /opt/venv/bin/python --interval 3600 --limit 45 \\"
    yield f"    --on-fail '{drain}' 2>&1 |\n    logger -t orch-node-test"
    yield "  exit 0"
    yield "cron, in /etc/cron.d:"
    yield f"  17 * * * *  root  {at} --python /opt/venv/bin/python --on-fail '{log}' >/dev/null"
    yield "Kubernetes, where the node has a kubeconfig that may do so:"
    yield f"  --on-fail '{taint}'"
    yield "A webhook:"
    yield '  --on-fail \'curl -fsS --data-binary @"$ORCH_EVIDENCE" "https://HOST/nodes/$ORCH_NODE"\''
    yield "The node states of a project, from a machine that reaches its folder:"
    yield '  --on-fail \'ssh LOGIN cd PROJECT "&&" orch nodes "$ORCH_NODE" --out --reason node-test\''
