"""Benches that are alike and benches that are not, measured on a lab: what `orch compare` and `orch
gate` make of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.rig import REPOSITORY, SMALL, Controller

REPEATED = (
    *SMALL[: SMALL.index("--repeats")],
    "--repeats",
    "5",
    "--stop-grace",
    "0.5",
    "--steps",
    "7",
    "--warmup-steps",
    "2",
)


def measured(controller: Controller, compute_ms: int, *words: str) -> str:
    done = controller.orch(
        "bench", *REPEATED, "--set", f"compute_ms={compute_ms}", *words, timeout_s=90
    )
    assert done.code == 0, done
    return controller.bench.name


def test_benches_alike_do_not_differ_and_what_makes_one_slower_is_named_first(
    controller: Controller, tmp_path: Path
) -> None:
    one, other = (measured(controller, 60, "--shape", "1n1g,2n1g") for _ in range(2))
    alike = controller.orch("compare", one, other, "--json")
    assert alike.code == 0 and [pair["case"] for pair in alike.json["pairs"]] == ["1n1g", "2n1g"], (
        alike
    )
    assert all(pair["verdict"] in ("no difference", "slight") for pair in alike.json["pairs"]), (
        alike.out
    )
    assert alike.json["distinctions"] == [] and alike.json["files"] == []

    slow = measured(controller, 120, "--shape", "2n1g")
    found = controller.orch("compare", one, slow, "--json").json
    assert [pair["verdict"] for pair in found["pairs"]] == ["slower"], found["pairs"]
    assert [each["name"] for each in found["distinctions"]] == ["options.compute_ms", "command"]
    (file,) = found["files"]
    assert (file["path"], file["cases"], file["node_ranks"]) == (
        "launch.sh",
        ["2n1g"],
        [0, 1],
    )
    assert [line.split("=")[1].split()[0] for line in file["lines"]] == ["60.0", "120.0"]
    refused = controller.orch("gate", "--baseline", one, slow)
    assert refused.code == 6 and "its spec differs in options.compute_ms" in refused.err

    shutil.copytree(REPOSITORY / "templates" / "simulated", tmp_path / "changed" / "simulated")
    launch = tmp_path / "changed" / "simulated" / "launch.sh.j2"
    launch.write_text(
        launch.read_text().replace("{{ options.compute_ms }}", "{{ options.compute_ms * 2 }}")
    )
    measured(controller, 60, "--shape", "1n1g", "--templates", str(tmp_path / "changed"))
    done = controller.orch("gate", "--baseline", one, "--json")
    assert done.code == 5 and "expected at most 3% slower" in done.err, done
    assert done.json["distinctions"][0]["name"] == "template.simulated"
