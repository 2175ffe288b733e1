"""Programs that need GPUs, launched for real on two nodes of two.

Stand-ins are nvidia-smi, mpirun, and programs that print logs of real ones. What starts and reads
them is the real thing.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

from tests.e2e.rig import REPOSITORY, Controller

TOP = "/root/stand-in"  # where everything lies, seen from a node
RUNNER = '#!/bin/sh\nPATH={top}/bin:$PATH exec {python} "$@"\n'
NVIDIA_SMI = """\
#!/bin/sh
if [ "$*" = "-q -x" ]; then
  echo "<nvidia_smi_log><driver_version>580.1</driver_version>"
  for gpu in 0 1; do echo "<gpu><product_name>Stand-in</product_name></gpu>"; done
  echo "</nvidia_smi_log>"
else
  echo 580.1
fi
"""
PROGRAM = """\
#!/bin/sh
{{ pwd; echo "$CUDA_VISIBLE_DEVICES"; for word; do echo "$word"; done; }} > {top}/given
cat {top}/log
sleep 0.5
! grep -q FAILED {top}/log  # as the NCCL tests end
"""
# Only the first rank prints; the words behind -np are those of mpirun, up to the program.
MPIRUN = """\
#!/bin/sh
for word; do echo "$word"; done > {top}/mpirun-given
while [ "${{1##*/}}" != all_reduce_perf ]; do shift; done
exec "$@"
"""
BURN = (
    "GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n"
    "\r20.0%  proc'd: 405 (26255 Gflop/s) - 405 (26200 Gflop/s)   errors: 0 - 0   temps: 67 C - 60 C "
    "\r60.0%  proc'd: 810 ({first} Gflop/s) - 810 (26100 Gflop/s)   errors: 0 - {errors}  temps: 70 C - 61 C "
    "\r100.0%  proc'd: 1215 ({first} Gflop/s) - 1215 (26300 Gflop/s)   errors: 0 - {errors}  temps: 87 C - 74 C "
    "\nKilling processes with SIGTERM (soft kill)\ndone\n\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: {verdict}\n"
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def prepared(controller: Controller, variable: str, program: str, logs: dict[str, str]) -> str:
    """Put a program that prints a log of its node on both nodes; return the inventory that says
    where it is.
    """
    for name, log in logs.items():
        folder = controller.lab.node(name).home / Path(TOP).name
        shutil.rmtree(folder, ignore_errors=True)
        write(folder / "bin/runner", RUNNER.format(top=TOP, python=controller.lab.python))
        write(folder / "bin/nvidia-smi", NVIDIA_SMI)
        write(folder / "bin/mpirun", MPIRUN.format(top=TOP))
        write(folder / "programs" / program, PROGRAM.format(top=TOP))
        write(folder / "log", log)
    own = {
        "runner_python": f"{TOP}/bin/runner",
        "python": f"{TOP}/bin/runner",
        "mpirun": f"{TOP}/bin/mpirun",
    }
    own |= {variable: f"{TOP}/programs"}
    text = Path(controller.lab.inventory).read_text().replace("  gpus: 0\n", "  gpus: 2\n")
    for name in logs:
        line = f"    address: {controller.lab.node(name).address}\n"
        text = text.replace(line, f"{line}    vars: {json.dumps(own)}\n")
    write(controller.project / "with_gpus.yaml", text)
    return str(controller.project / "with_gpus.yaml")


def given(controller: Controller, node: str, name: str = "given") -> list[str]:
    return (controller.lab.node(node).home / Path(TOP).name / name).read_text().splitlines()


def table(controller: Controller) -> dict[tuple[str, ...], float]:
    """The values of the newest bench by metric and the parts of its key."""
    done = controller.orch("summarize", "--format", "csv")
    rows = csv.DictReader(io.StringIO(done.out))
    keys = [name for name in rows.fieldnames or () if name.startswith("key.")]
    return {
        (row["metric"], *(row[name] for name in keys)): float(row["value"])
        for row in rows
        if row["value"]
    }


def test_each_gpu_of_each_node_has_its_rate_and_a_wrong_result_names_the_node(
    controller: Controller,
) -> None:
    logs = {
        "node1": BURN.format(first=26500, errors="0 ", verdict="OK"),
        "node2": BURN.format(first=20100, errors="0 ", verdict="OK"),
    }
    inventory = prepared(controller, "gpu_burn_dir", "gpu_burn", logs)
    words = (
        "bench",
        "gpu_burn",
        "--nodes",
        "2",
        "--steps",
        "10",
        "--warmup-steps",
        "1",
        "--no-baseline",
        "-H",
        inventory,
    )
    done = controller.orch(*words)
    assert done.code == 0, done
    assert given(controller, "node2") == [f"{TOP}/programs", "0,1", "-m", "90%", "10"]
    assert table(controller) == {
        ("gflops", "0", "node1"): 26500, ("gflops", "0", "node2"): 20100,
        ("gflops", "1", "node1"): 26200, ("gflops", "1", "node2"): 26200,
        ("temperature", "0", "node1"): 87, ("temperature", "0", "node2"): 87,
        ("temperature", "1", "node1"): 74, ("temperature", "1", "node2"): 74,
    }  # fmt: skip

    faulty = BURN.format(first=20100, errors="7  (WARNING!)", verdict="FAULTY")
    prepared(controller, "gpu_burn_dir", "gpu_burn", logs | {"node2": faulty})
    done = controller.orch(*words)
    assert done.code == 1, done
    assert "node2: its launch script ended with exit code 1" in done.err
    assert "expected correct results, got wrong ones from GPU 1" in done.err


def test_the_rows_of_an_nccl_test_become_metrics_by_size(controller: Controller) -> None:
    log = (REPOSITORY / "templates" / "nccl_tests" / "sample.log").read_text()
    device = (
        "#  Rank  {} Group  0 Pid  24926 on  nid007109 device  1 [0009:01:00] NVIDIA GH200 120GB\n"
    )
    log = log.replace("#\n#    ", "".join(device.format(rank) for rank in (2, 3)) + "#\n#    ", 1)
    # Of four ranks instead of two: the bandwidth of the bus is 1.5 times that of the algorithm.
    log = re.sub(
        r"( +[0-9.]+)( +)([0-9.]+)(?= +0(?: |$))",
        lambda row: f"{row[1]}{row[2]}{1.5 * float(row[1]):.2f}",
        log.replace("15.8763", f"{1.5 * 15.8763:.4f}"),
        flags=re.MULTILINE,
    )
    inventory = prepared(
        controller, "nccl_tests_dir", "all_reduce_perf", {"node1": log, "node2": log}
    )
    done = controller.orch(
        "bench",
        "all_reduce_perf",
        "--nodes",
        "2",
        "--repeats",
        "2",
        "--no-baseline",
        "-H",
        inventory,
    )
    assert done.code == 0, done
    values = table(controller)
    assert len(values) == 24
    assert values["busbw", "134217728"] == 34.29
    assert values["time_in_place", "1048576"] == 335.85
    words = given(controller, "node1", "mpirun-given")
    assert words[:4] == ["-np", "4", "-H", "10.11.0.2:2,10.11.0.3:2"]
    assert given(controller, "node1")[2:4] == ["--minbytes", "1024"]
    assert not (controller.lab.node("node2").home / Path(TOP).name / "given").exists()

    wrong = log.replace("22.86   34.29       0", "22.86   34.29      12").replace(
        "values : 0 OK", "values : 12 FAILED"
    )
    prepared(controller, "nccl_tests_dir", "all_reduce_perf", {"node1": wrong, "node2": log})
    done = controller.orch(
        "bench",
        "all_reduce_perf",
        "--nodes",
        "2",
        "--repeats",
        "1",
        "--no-baseline",
        "-H",
        inventory,
    )
    assert done.code == 1 and "node1: its launch script ended with exit code 1" in done.err, done
    assert table(controller) == {}
