"""What runs showed of each node beside their numbers, and where it stands in a certificate."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from orchestrator.errors import RunError
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.observations import of_runs, see
from orchestrator.features.accept.page import render
from orchestrator.features.accept.report import lines
from orchestrator.features.accept.report import list_observations as seen_of
from orchestrator.features.hang.cause import VERDICT_KEY, Verdict
from orchestrator.record.manifest import RecordedOutcome, write_outcome
from orchestrator.results.numbers.excess import Excess
from orchestrator.results.run import Lowered
from orchestrator.results.slow_ranks import SlowRank
from orchestrator.results.summary import summarize
from orchestrator.results.telemetry.utilization import NodeUse, RunUse
from tests.support.acceptances import acceptance
from tests.support.summaries import runs

HUNG = Verdict(
    "stopped", "stopped in step 118 (state T)", "; ranks 0, 1 wait in all-reduce 119", "node3", (2,)
)
LINK = Verdict("link", "nothing arrives between node1 and <b>node2</b>")


def test_a_hang_stands_beside_the_node_that_it_names_and_one_without_a_node_beside_its_stage(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=3)
    first, second, *_ = folder.bench(folder.record().attempts[0].bench_id).runs()
    for run, verdict in ((first, HUNG), (second, LINK)):
        error = RunError(verdict.message, kind="run_timeout", host=verdict.host, run_id=run.run_id)
        write_outcome(
            run, RecordedOutcome("failed", error, evidence={VERDICT_KEY: asdict(verdict)})
        )
    certificate = certificate_of(folder)
    seen = {node.host: node.seen for node in certificate.nodes}
    assert seen == {
        "node1": (),
        "node2": (),
        "node3": (f"gemm: {first.run_id} was ended: {HUNG.sentence}",),
    }
    assert f"{second.run_id}: {LINK.sentence}" in certificate.stages[-1].notes
    page, text = render(certificate), list(lines(certificate))
    assert HUNG.sentence in page and "&lt;b&gt;node2" in page and "<b>node2" not in page
    told = text[text.index("  seen, not judged") + 1]
    assert told.startswith("      node3: gemm: ") and told.endswith(HUNG.sentence)


def test_what_was_seen_of_many_nodes_is_told_once(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=12))
    loads = {node.host: (f"gemm: other processes used 40% of the processors of {node.host}, in 5 of 5 runs",)
             for node in certificate.nodes}  # fmt: skip
    loads["node1"] = ("gemm: node1 is not node1-ib or node10",)
    certificate = replace(
        certificate, nodes=tuple(replace(node, seen=loads[node.host]) for node in certificate.nodes)
    )
    assert seen_of(certificate) == [
        ("node1", "gemm: node1 is not node1-ib or node10"),
        (
            "node[2-12]",
            "gemm: other processes used 40% of the processors of node[2-12], in 5 of 5 runs",
        ),
    ]


def test_slow_ranks_and_doubts_of_samples_stand_beside_their_node() -> None:
    def node(host: str, **changes: object) -> NodeUse:
        whole = NodeUse(host, 10, 8, (), None, None, None, (), None, None, {}, (), None)
        return replace(whole, **changes)  # type: ignore[arg-type]

    use = RunUse(10.0, (node("node1"), node("node2", link_errors={"mlx5_0:1": 3})))
    made = [
        replace(
            run,
            use=use,
            slowed={"sw_thermal_slowdown": {"node1": Lowered(0.5, 0.5, None)}},
            facts={"node1": {}, "node2": {}},
        )
        for run in runs("2n1g", [100.0, 101.0])
    ]
    slow = SlowRank(
        1,
        "node2",
        "compute",
        Excess(0.12, 0.1, 0.14, True),
        "device",
        "rank 1 on node2 takes 12.0% longer",
    )
    summary = summarize(made)
    summary = replace(summary, rows=tuple(replace(row, slow=(slow,)) for row in summary.rows))
    seen: dict[str, list[str]] = {}
    for _ in range(2):
        see(seen, "soak", of_runs(summary, made))
    assert seen == {
        "node1": [
            "soak: clocks lowered by temperature: for 50% of the measured window on node1, in 2 of 2 runs"
        ],
        "node2": [
            "soak: rank 1 on node2 takes 12.0% longer",
            "soak: errors of a link, mlx5_0:1 on node2, in 2 of 2 runs",
        ],
    }
