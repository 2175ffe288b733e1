"""`orch bench pairs` in a lab of four nodes, of which one, or what two send each other, is limited
for real.

The limited node is found with PyTorch; what is found besides depends on the rounds and the judgement
alone, which are the same over plain TCP, without a start of PyTorch on each node.
"""

from __future__ import annotations

from tests.e2e.rig import Controller, Done
from tests.support import faults, plain_pairs
from tests.support.trainers import needs

STEPS = (13, 25)
PLAIN = ("plain_pairs", "--set", "size_bytes=1000000")


def verdict(controller: Controller, *words: str) -> Done:
    """The result of a short bench; of a longer one, as it proposes, where the noise of this machine
    hides everything.
    """
    for steps in STEPS:
        done = controller.orch("bench", *words, "--steps", str(steps), timeout_s=200)
        if "hides nearly everything" not in done.out:
            break
    return done


def test_a_limited_node_and_a_limited_pair_are_named_and_nothing_without_them(
    controller: Controller,
) -> None:
    needs("torch")
    lab = controller.lab

    faults.rate(lab, "node3", "150mbit")
    try:
        found = verdict(controller, "pairs")
    finally:
        faults.rate(lab, "node3", None)
    assert found.code == 1, found
    assert (
        found.err.splitlines()[-1].startswith("orch: node3: ")
        and "slower to every partner" in found.err
    )
    assert "node_unfit" not in found.out and found.out.count(" slow\n") == 1
    spec = controller.manifest()["spec"]
    assert (spec["nodes"], spec["gpus"]) == (4, 1) and spec["steps"] in STEPS

    summary = controller.orch("summarize", "--json")
    assert summary.code == 0, summary
    (sheet,) = summary.json["sheets"]
    assert [text.split(":")[0] for text in sheet["culprits"]] == ["node3"]
    nodes = {row[0]: row for row in sheet["grids"][0]["rows"]}
    assert min(nodes["node3"][1], nodes["node3"][2]) > 1.1
    for form in ("table", "markdown", "csv", "html"):
        shown = controller.orch("summarize", "--format", form)
        assert shown.code == 0 and "node3" in shown.out and "slow" in shown.out, shown

    plain_pairs.write(controller.project)
    faults.pair_rate(lab, "node1", "node4", "100mbit")
    try:
        found = verdict(controller, *PLAIN)
    finally:
        faults.pair_rate(lab, "node1", "node4", None)
    assert found.code == 1 and found.err.splitlines()[-1].startswith(
        "orch: link node1 to node4: "
    ), found

    clean = verdict(controller, *PLAIN)
    assert clean.code == 0 and "nothing stands out: all pairs within" in clean.out, clean


def test_one_node_is_no_pair(controller: Controller) -> None:
    done = controller.orch("bench", "pairs", "--nodes", "1")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err.splitlines()[-1] == "orch: --nodes: pairs: expected 2 or more: a pair is two nodes"
    )
