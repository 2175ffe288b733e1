"""A folder that `orch framework new` made runs as it is, found in the project without an option."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.rig import Controller

PROGRAM = """\
import os, time, shared
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], flush=True)
for step in range(1, shared.STEPS + 1):
    start = time.perf_counter()
    time.sleep(0.02)
    print("step {} {:.6f} s/step".format(step, time.perf_counter() - start), flush=True)
"""


def speed(controller: Controller, name: str, *words: str) -> float:
    done = controller.orch(
        "bench", name, "-f", name, "--repeats", "1", "--no-baseline", "--json", *words
    )
    assert done.code == 0, done
    (row,) = done.json["rows"]
    return float(row["value"])


def test_a_module_of_a_package_is_found_on_the_nodes(controller: Controller) -> None:
    package: Path = controller.project / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shared.py").write_text("STEPS = 20\n")
    (package / "run.py").write_text(
        PROGRAM.replace("import os, time, shared", "import os, time\nfrom pack import shared")
    )
    made = controller.orch(
        "framework", "new", "own", "--from-command", "python -m pack.run --steps 20"
    )
    assert made.code == 0, made
    assert speed(controller, "own", "--shape", "1n1g") > 0


def test_an_example_runs_on_two_nodes(controller: Controller) -> None:
    assert controller.orch("framework", "new", "mine").code == 0
    assert speed(controller, "mine", "--shape", "2n1g", "--steps", "20") > 0
    ranks = [
        (controller.runs[-1] / "logs" / node / f"rank-{rank}.out")
        for rank, node in enumerate(("node1", "node2"))
    ]
    assert [path.read_text().splitlines()[0] for path in ranks] == [
        "rank 0 of 2 is up",
        "rank 1 of 2 is up",
    ]


MACHINE = """\
title: prints a number
measures: readings
models: {number: {}}
dtypes: {cpu: {none: none}}
defaults: {dtype: none, steps: 1, warmup_steps: 0, timeout_s: 60, repeats: 1}
files: [{template: launch.sh.j2, path: launch.sh, mode: "0700"}]
probe: "print('{}')"
setup: ["echo rate=7 >&2", "echo rate=8", "export RATE=9"]
log: {files: ["*"], readings: '^rate=(?P<rate>[0-9]+)$', metrics: {rate: {unit: GB/s, better: higher}}}
"""


def test_nothing_that_setup_lines_print_is_read_as_a_result_and_one_that_fails_is_blamed(
    controller: Controller,
) -> None:
    folder: Path = controller.project / "templates" / "number"
    folder.mkdir(parents=True)
    (folder / "framework.yaml").write_text(MACHINE)
    (folder / "launch.sh.j2").write_text(
        "#!/bin/bash\nset -euo pipefail\n. ./env.sh\necho rate=$RATE\n"
    )
    assert speed(controller, "number", "--shape", "1n1g") == pytest.approx(9)
    assert (controller.runs[-1] / "logs" / "node1" / "setup.out").read_text() == "rate=7\nrate=8\n"
    # It fails where a run is, and not in the preflight.
    failing = MACHINE.replace('"export RATE=9"', '"ls launch.sh /nowhere; [ ! -e launch.sh ]"')
    (folder / "framework.yaml").write_text(failing)
    done = controller.orch("bench", "number", "-f", "number", "--shape", "1n1g")
    assert done.code == 1
    assert (
        "setup: line 3 (ls launch.sh /nowhere; [ ! -e launch.sh ]) ended with exit code 1"
        in done.err
    )
    assert (
        "last lines of setup.out on node1" in done.err
        and "'/nowhere': No such file or directory" in done.err
    )
    shown = controller.orch("logs")
    assert shown.code == 0 and "node1 setup.out: setup: line 3" in shown.out, shown


def test_a_command_becomes_a_bench_with_its_script_and_its_arguments(
    controller: Controller,
) -> None:
    source: Path = controller.project / "src"
    source.mkdir()
    (source / "own.py").write_text(PROGRAM)
    (source / "shared.py").write_text("STEPS = 20\n")
    made = controller.orch(
        "framework",
        "new",
        "own",
        "--from-command",
        "WORLD_SIZE=1 python src/own.py --steps 20 --epochs 1",
    )
    assert made.code == 0, made
    assert (
        50 < speed(controller, "own", "--shape", "2n1g") < 100
    )  # a sample of each of two ranks in 20 ms and more
    launch = (controller.runs[-1] / "rendered" / "node2" / "launch.sh").read_text()
    assert "own.py --steps 20 --epochs 1" in launch
    assert (
        (controller.runs[-1] / "logs" / "node2" / "rank-1.out")
        .read_text()
        .startswith("rank 1 of 2 10.11.")
    )


REFUSES = """\
import os, sys
size = int(sys.argv[-1])
if size > 2:
    sys.exit("own.py: expected a batch size that fits, got {}\\x1b[1m".format(size))
raise ValueError("no tile of {}\\n  is whole".format(size))
"""


def test_the_sentence_with_which_a_rank_ended_is_in_the_table_and_in_its_json(
    controller: Controller,
) -> None:
    source: Path = controller.project / "src"
    source.mkdir()
    (source / "own.py").write_text(REFUSES)
    assert (
        controller.orch(
            "framework", "new", "own", "--from-command", "python src/own.py --batch-size 4"
        ).code
        == 0
    )
    words = ("--shape", "1n1g", "--repeats", "1", "--batch-size", "2,4", "--keep-going")
    done = controller.orch("bench", "own", "-f", "own", *words, "--json")
    said = ("ValueError: no tile of 2 is whole", "own.py: expected a batch size that fits, got 4")
    ends = [
        f"failed: node1: rank 0 ended with exit code 1: last output: {sentence}"
        for sentence in said
    ]
    assert (
        done.code == 1
        and [row["failures"][0].partition(" ")[2] for row in done.json["rows"]] == ends
    ), done
    shown = controller.orch("summarize")
    assert all(end in " ".join(shown.out.split()) for end in ends), shown
