"""`orch accept sentinel`: write the node test as one file, and say where to put it.

It is the node's side of acceptance between acceptances: prologs, epilogs, health checks and cron
run it, and no controller is there (`remote/noderun/node_test.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
    yield f"{path}: one file, for Python 3.6 or newer; it needs PyTorch in the Python of --python"
    yield ""
    yield "Copy it to each node, and look once by hand:"
    yield f"  {at} --python /opt/venv/bin/python --json"
    yield ""
    yield "Slurm, in a script that HealthCheckProgram, Prolog or Epilog of slurm.conf names:"
    yield f"  #!/bin/sh\n  exec {at} --python /opt/venv/bin/python --interval 3600 \\"
    yield '    --on-fail \'scontrol update NodeName="$ORCH_NODE" State=DRAIN Reason="$ORCH_REASON"\''
    yield "  # A Prolog or Epilog that ends with 5 drains the node by itself: leave --on-fail out there."
    yield "cron, in /etc/cron.d:"
    yield f"  17 * * * *  root  {at} --on-fail 'logger -p err \"$ORCH_DEVICE: $ORCH_REASON\"'"
    yield "Kubernetes, where the node has a kubeconfig that may do so:"
    yield "  --on-fail 'kubectl taint node \"$ORCH_NODE\" --overwrite orch-node-test=failed:NoSchedule'"
