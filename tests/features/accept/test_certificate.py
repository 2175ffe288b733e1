"""The certificate of acceptances whose truth is known: who fails, by which bar, and what stays
open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.features.accept.bars import confirm_suspects
from orchestrator.features.accept.certificate import Certificate, certificate_of
from orchestrator.features.accept.earlier import against_earlier, dump_group
from orchestrator.features.accept.page import render
from orchestrator.features.accept.record import AcceptanceDir
from orchestrator.features.accept.report import lines, status
from orchestrator.features.accept.units import Group, Unit
from orchestrator.features.accept.verdicts import Finding, Judged
from orchestrator.plan.spec import Skipped
from orchestrator.record.manifest import RecordedOutcome, write_outcome
from tests.features.accept.certificates import CHECK, judged, verdicts
from tests.support.acceptances import REFERENCE, STEADY, SUITE, acceptance

SLOW = tuple(0.88 * value for value in STEADY)


def test_a_cluster_without_a_fault_passes_and_says_what_was_not_tested(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=4, gpus=2))
    assert (certificate.verdict, status(certificate)) == ("pass", 0)
    assert verdicts(certificate) == dict.fromkeys(("node1", "node2", "node3", "node4"), "pass")
    assert certificate.not_tested == {
        "soak": "takes about 5h, 1h of the budget is left",
        "against the last acceptance": "no acceptance of these hosts with this suite has passed before",
    }
    assert judged(certificate, "peers").got.startswith(
        "one 3.9% slower would have been found in 9 of 10 cases; measured: "
    )
    assert judged(certificate, "reference").source == "a table"
    assert certificate.nodes[0].serials == {
        "hostname": "box",
        "host key": "k",
        "boot id": "b",
        "cpu": "a cpu",
    }


def test_a_slow_device_fails_its_node_by_its_peers_and_by_the_reference(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {5: SLOW}, nodes=4, gpus=2))
    assert (certificate.verdict, status(certificate)) == ("fail", 5)
    assert verdicts(certificate) == {
        "node1": "pass",
        "node2": "pass",
        "node3": "fail",
        "node4": "pass",
    }
    for kind in ("peers", "reference"):
        (finding,) = judged(certificate, kind).findings
        assert (finding.subject, finding.hosts, finding.verdict) == (
            "node3 device 1",
            ("node3",),
            "fail",
        )
        assert len(finding.evidence) == 5
    reach = judged(certificate, "peers").findings[0].text.removesuffix(")").rpartition(": ")[2]
    low, high = (float(part.rstrip("%")) for part in reach.split(" to "))
    assert low < 13.6 < high


def test_devices_that_are_all_slow_fail_by_the_reference_alone(tmp_path: Path) -> None:
    slow = tuple(0.90 * value for value in STEADY)
    certificate = certificate_of(acceptance(tmp_path, {rank: slow for rank in range(4)}, nodes=4))
    assert judged(certificate, "peers").verdict == "pass"
    assert [finding.hosts for finding in judged(certificate, "reference").findings] == [
        (f"node{n}",) for n in range(1, 5)
    ]
    assert set(verdicts(certificate).values()) == {"fail"}


def test_another_type_of_device_has_no_reference(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=3, device="NVIDIA B300"))
    assert (
        "reference" not in [bar.kind for bar in certificate.judged]
        and certificate.verdict == "pass"
    )


def test_noise_that_hides_a_slow_device_leaves_the_verdict_open(tmp_path: Path) -> None:
    noisy: Sequence[Sequence[float]] = (
        (400, 900, 650, 300, 800),
        (900, 500, 800, 700, 400),
        (600, 1000, 300, 500, 900),
    )
    certificate = certificate_of(
        acceptance(tmp_path, {n: tuple(map(float, row)) for n, row in enumerate(noisy)}, nodes=3)
    )
    (finding,) = [finding for finding in certificate.cluster if "may be missed" in finding.text]
    assert finding.verdict == "undecided" and "reference figure" in finding.decides
    assert (certificate.verdict, status(certificate)) == ("undecided", 6)


OFTEN_SLOW = {
    rank: tuple(
        value * (0.94 if (3 * rank + 2 * repeat * repeat) % 7 < 2 else 1.0)
        for repeat, value in enumerate(STEADY)
    )
    for rank in range(16)
}
"""16 devices of which each measurement in four is 6 % slow, and none of them is slower than the
others.
"""


def test_slow_measurements_of_every_device_fail_none_and_leave_open_with_what_would_decide(
    tmp_path: Path,
) -> None:
    certificate = certificate_of(acceptance(tmp_path, OFTEN_SLOW, nodes=16))
    bar = judged(certificate, "peers")
    assert certificate.verdict == "undecided" and not any(
        finding.verdict == "fail" for finding in bar.findings
    )
    for finding in bar.findings:
        repeats = re.fullmatch(
            r"(\d+) repeats of this stage instead of 5, on otherwise idle nodes", finding.decides
        )
        assert repeats and int(repeats[1]) > 5
    assert bar.least is not None and bar.least > 0.06


def test_a_device_that_is_slow_throughout_fails_unless_others_are_as_slow_for_a_while(
    tmp_path: Path,
) -> None:
    for_a_while = {0: (*SLOW[:3], *STEADY[3:])}
    alone = certificate_of(
        acceptance(tmp_path / "alone", {2: SLOW}, nodes=16, device="NVIDIA B300")
    )
    assert verdicts(alone)["node3"] == "fail"
    among = certificate_of(
        acceptance(tmp_path / "among", {2: SLOW, **for_a_while}, nodes=16, device="NVIDIA B300")
    )
    findings = {finding.subject: finding for finding in judged(among, "peers").findings}
    assert findings["node3"].verdict == verdicts(among)["node3"] == "undecided"
    assert "others are as slow for a while" in findings["node3"].text
    assert "at another time" in findings["node3"].decides


def test_what_measured_slower_than_the_bar_allows_never_passes(tmp_path: Path) -> None:
    slow = {1: (627.0, 628.0, 660.0, 626.0, 661.0)}
    certificate = certificate_of(acceptance(tmp_path, slow, nodes=4, device="NVIDIA B300"))
    (finding,) = [
        finding for finding in judged(certificate, "peers").findings if finding.kind == "node"
    ]
    assert (finding.subject, finding.verdict) == (
        "node2",
        "undecided",
    ) and "which noise alone may do here" in finding.text
    assert verdicts(certificate)["node2"] == certificate.verdict == "undecided"


def test_a_certificate_has_the_number_of_each_device_beside_its_peers_and_its_reference(
    tmp_path: Path,
) -> None:
    certificate = certificate_of(acceptance(tmp_path, {2: SLOW}, nodes=4))
    figure = certificate.figures[2]
    assert (figure.subject, figure.unit, figure.repeats, figure.reference) == (
        "node3",
        "TFLOP/s",
        5,
        668.76,
    )
    assert (
        figure.low is not None
        and figure.high is not None
        and figure.low <= figure.value <= figure.high
    )
    assert figure.of_median == pytest.approx(0.88, abs=0.002)
    assert figure.of_reference == pytest.approx(0.869, abs=0.002)
    text, page = "\n".join(lines(certificate)), render(certificate)
    reach = f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"
    reference = (
        f"{figure.of_reference:.1%} of the reference, 668.76 (647.50 to 670.00 on 9 devices)"
    )
    for shown in (reach, reference):
        assert shown in text and shown in page
    assert json.loads(json.dumps(certificate.as_dict()))["figures"][2]["value"] == figure.value
    power = "slower than its peers, in 9 of 10 cases"
    assert text.index(power) < text.index("nodes, fail") and power in page


def test_devices_of_unknown_name_are_no_name_to_write_a_figure_for(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=4, device=""))
    assert "reference figures of devices of unknown name" in certificate.not_tested
    text = "\n".join(lines(certificate))
    assert "no reference for devices of unknown name: that all are equally slow" in text


def test_that_all_may_be_equally_slow_is_said_where_no_reference_is_known(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=4, device="NVIDIA B300"))
    assert certificate.not_tested["reference figures of NVIDIA B300"].endswith(
        "devices that are all equally slow would pass"
    )
    text = "\n".join(lines(certificate))
    assert "no reference for NVIDIA B300: that all are equally slow would not be found" in text
    assert (
        text.count("  no reference for NVIDIA B300") == 5
        and certificate.figures[0].reference is None
    )


def test_of_many_numbers_those_furthest_from_the_others_are_printed(tmp_path: Path) -> None:
    text = list(lines(certificate_of(acceptance(tmp_path, {11: SLOW}, nodes=20))))
    start = text.index(
        next(line for line in text if "tflops_rank size=8192, TFLOP/s, median of 5 repeats" in line)
    )
    assert (
        text[start + 1].startswith("      node12  581") and "the other 12: 660" in text[start + 9]
    )


def test_two_nodes_cannot_be_compared_and_the_certificate_says_so(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, {0: SLOW}, nodes=2, device="NVIDIA B300"))
    assert "peers" not in [bar.kind for bar in certificate.judged]
    assert certificate.not_tested["gemm, gemm tflops_rank size=8192 against peers"].endswith(
        "got 2 and 5"
    )


def test_shapes_that_are_too_large_for_the_nodes_that_are_left_are_listed_as_not_tested(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=3)
    bench = folder.bench(folder.record().attempts[0].bench_id)
    reason = "expected 4 hosts, 3 selected: node[1-3]"
    large = tuple(Skipped("pytorch", "gemm", {"nodes": 4, "gpus": gpus}, reason) for gpus in (1, 2))
    bench.change(lambda record: replace(record, skipped=large))
    said = "gemm, pytorch gemm 4n1g; pytorch gemm 4n2g"
    assert certificate_of(folder).not_tested[said] == reason
    folder.change(
        lambda record: replace(record, left_out={said: "was too large already when it was planned"})
    )
    assert certificate_of(folder).not_tested[said] == "was too large already when it was planned"


def lose_links(folder: AcceptanceDir, *hosts: str, interface: str = "eth0") -> None:
    """Let each of these hosts lose a link twice in the first run, and once in the second."""
    for run, count in zip(
        folder.bench(folder.record().attempts[0].bench_id).runs(), (2, 1), strict=False
    ):
        for host in hosts:
            path = run.path / "logs" / host / "exit.json"
            meter = {"growth": [], "links_lost": {interface: count}}
            path.write_text(json.dumps(json.loads(path.read_text()) | {"meter": meter}))


def test_a_node_whose_link_was_lost_fails_though_its_runs_are_as_fast_as_others(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=4)
    lose_links(folder, "node3")
    certificate = certificate_of(folder)
    assert verdicts(certificate) == {
        "node1": "pass",
        "node2": "pass",
        "node3": "fail",
        "node4": "pass",
    }
    (finding,) = judged(certificate, "lost links").findings
    assert (
        finding.text == "eth0 lost its link 3 times during its runs" and len(finding.evidence) == 2
    )
    assert judged(certificate, "lost links").got == "links were lost 3 times, on 1 of 4 nodes"


def test_a_failed_run_names_the_node_whose_link_was_lost_beside_the_one_that_noticed(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=4)
    run = folder.bench(folder.record().attempts[0].bench_id).runs()[0]
    lose_links(folder, "node3")
    error = RunError("silent for 2.9 s", kind="node_lost", host="node2", run_id=run.run_id)
    write_outcome(run, RecordedOutcome("failed", error, {}, {}, True))
    assert (
        judged(certificate_of(folder), "lost links").findings[0].text
        == "eth0 lost its link 3 times during its runs"
    )


def test_links_of_many_nodes_are_what_they_are_connected_to_and_one_that_leads_nowhere_decides_nothing(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path / "switch", {}, nodes=4)
    lose_links(folder, "node1", "node2", "node4")
    (finding,) = judged(certificate_of(folder), "lost links").findings
    assert (finding.kind, finding.verdict) == ("cluster", "fail")
    assert (
        finding.text
        == "eth0 of node[1-2,4] lost its link 3 times: check what they are connected to, such as a common switch"
    )
    folder = acceptance(tmp_path / "cable", {}, nodes=2)
    lose_links(folder, "node1", "node2")
    assert [finding.kind for finding in judged(certificate_of(folder), "lost links").findings] == [
        "cluster"
    ]
    folder = acceptance(tmp_path / "management", {}, nodes=4)
    lose_links(folder, "node2", interface="usb0")
    assert verdicts(certificate_of(folder))["node2"] == "undecided"


def test_a_device_that_became_slower_fails_by_what_it_was(tmp_path: Path) -> None:
    before = certificate_of(acceptance(tmp_path / "may", {}, nodes=3, name="may"))
    known: dict[str, Any] = {
        "id": "may",
        "measured": json.loads(json.dumps(before.as_dict()))["measured"],
    }
    same = certificate_of(acceptance(tmp_path / "june", {}, nodes=3, name="june", earlier=known))
    assert judged(same, "earlier").verdict == "pass" and same.earlier == "may"
    slower = {rank: tuple(0.94 * value for value in STEADY) for rank in range(3)}
    later = certificate_of(
        acceptance(tmp_path / "july", slower, nodes=3, name="july", earlier=known)
    )
    (finding,) = judged(later, "earlier").findings
    assert (finding.kind, finding.verdict) == ("cluster", "fail") and "fail" not in verdicts(
        later
    ).values()
    assert re.search(
        r"typically 6\.4% slower \(95 %: 6\.\d% to 6\.\d%\) than in may$", finding.text
    )
    one = certificate_of(
        acceptance(tmp_path / "one", {1: slower[1]}, nodes=3, name="one", earlier=known)
    )
    (finding,) = judged(one, "earlier").findings
    assert (finding.hosts, finding.verdict) == (("node2",), "fail") and re.search(
        r"than in may; 6\.\d% slower relative to its peers", finding.text
    )
    lower = {rank: tuple(0.80 * value for value in STEADY) for rank in range(5)} | {
        4: tuple(0.70 * value for value in STEADY)
    }
    wide = certificate_of(acceptance(tmp_path / "wide", {}, nodes=6, name="wide"))
    of_six: dict[str, Any] = {
        "id": "wide",
        "measured": json.loads(json.dumps(wide.as_dict()))["measured"],
    }
    common = certificate_of(
        acceptance(tmp_path / "common", lower, nodes=6, name="common", earlier=of_six)
    )
    assert [finding.hosts[:2] for finding in judged(common, "earlier").findings] == [
        ("node5",),
        ("node1", "node2"),
    ]
    other = SUITE.replace("repeats: 5,", "repeats: 5, env: {LEVEL: low},")
    changed = certificate_of(
        acceptance(tmp_path / "other", slower, nodes=3, name="other", earlier=known, suite=other)
    )
    assert "earlier" not in [bar.kind for bar in changed.judged]
    (reason,) = [
        reason
        for name, reason in changed.not_tested.items()
        if "against the last acceptance" in name
    ]
    assert reason == "may did not measure this with the same settings"


DEAD = (0.0,) * 5


def test_a_device_that_computes_nothing_fails_by_every_bar_and_keeps_none_from_being_compared(
    tmp_path: Path,
) -> None:
    before = certificate_of(acceptance(tmp_path / "may", {}, nodes=5, name="may"))
    known: dict[str, Any] = {
        "id": "may",
        "measured": json.loads(json.dumps(before.as_dict()))["measured"],
    }
    certificate = certificate_of(
        acceptance(tmp_path / "june", {1: DEAD, 2: SLOW}, nodes=5, name="june", earlier=known)
    )
    failed = {
        kind: [finding.hosts[0] for finding in judged(certificate, kind).findings]
        for kind in ("peers", "reference", "earlier")
    }
    assert failed == dict.fromkeys(failed, ["node2", "node3"]) and certificate.verdict == "fail"
    assert "0 or below in 5 of 5 repeats" in judged(certificate, "peers").findings[0].text
    again: dict[str, Any] = {
        "id": "june",
        "measured": json.loads(json.dumps(certificate.as_dict()))["measured"],
    }
    back = certificate_of(acceptance(tmp_path / "july", {}, nodes=5, name="july", earlier=again))
    assert judged(back, "earlier").got.endswith("not compared: node2") and back.verdict == "pass"


def test_one_of_three_devices_that_computes_nothing_fails_though_two_cannot_be_compared(
    tmp_path: Path,
) -> None:
    certificate = certificate_of(acceptance(tmp_path, {1: DEAD}, nodes=3, device="NVIDIA B300"))
    bar = judged(certificate, "peers")
    assert [finding.hosts for finding in bar.findings] == [("node2",)] and bar.hosts == ("node2",)
    assert (
        bar.got
        == "the others cannot be compared: expected three or more nodes or devices and two or more repeats, got 2 and 5"
    )
    assert verdicts(certificate) == {"node1": "undecided", "node2": "fail", "node3": "undecided"}


def test_zeros_of_all_devices_are_no_comparison_and_that_is_said(tmp_path: Path) -> None:
    certificate = certificate_of(acceptance(tmp_path, dict.fromkeys(range(4), DEAD), nodes=4))
    assert (
        certificate.not_tested["gemm, gemm tflops_rank size=8192 against peers"]
        == "values of 0 or below have no ratio"
    )
    assert judged(certificate, "reference").verdict == "fail"


@pytest.mark.parametrize(("nodes", "dead"), [(4, 2), (2, 1), (5, 4)])
def test_zeros_of_half_of_the_devices_or_more_are_open(
    tmp_path: Path, nodes: int, dead: int
) -> None:
    certificate = certificate_of(
        acceptance(tmp_path, dict.fromkeys(range(dead), DEAD), nodes=nodes, device="NVIDIA B300")
    )
    names = [f"node{number + 1}" for number in range(dead)]
    bar = judged(certificate, "peers")
    assert [(finding.subject, finding.verdict) for finding in bar.findings] == [
        (name, "undecided") for name in names
    ]
    assert bar.findings[0].text.endswith(
        "0 or below in 5 of 5 repeats, as in at least half of the nodes or devices"
    )
    assert certificate.verdict == "undecided"


def test_a_number_of_all_nodes_together_has_no_peers_and_that_is_said(tmp_path: Path) -> None:
    whole = SUITE.replace("metric: tflops_rank", "metric: tflops")
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=4, suite=whole))
    assert (
        certificate.not_tested["gemm, gemm tflops size=8192 against peers"]
        == "it is a single number for all nodes together"
    )


AXIS = SUITE.replace("repeats: 5,", "repeats: 5, env: {LEVEL: [low, high]},")


def test_configurations_of_a_stage_are_judged_each_by_itself_and_told_apart(tmp_path: Path) -> None:
    before = certificate_of(acceptance(tmp_path / "may", {}, nodes=4, name="may", suite=AXIS))
    known: dict[str, Any] = {
        "id": "may",
        "measured": json.loads(json.dumps(before.as_dict()))["measured"],
    }
    assert len(known["measured"]) == 2
    later = acceptance(
        tmp_path / "june", {}, nodes=4, name="june", suite=AXIS, earlier=known,
        scaled=lambda spec, rank: 0.5 if (spec.env["LEVEL"], rank) == ("low", 3) else 1.0,
    )  # fmt: skip
    bars = [bar for bar in certificate_of(later).judged if bar.kind == "earlier"]
    assert {bar.bar.split(":")[0]: [finding.hosts for finding in bar.findings] for bar in bars} == {
        "gemm tflops_rank size=8192 LEVEL=low": [("node4",)],
        "gemm tflops_rank size=8192 LEVEL=high": [],
    }


def test_a_cluster_of_which_half_is_slow_is_open_and_no_stage_more_makes_it_fail(
    tmp_path: Path,
) -> None:
    half = {rank: tuple(value / 1.5 for value in STEADY) for rank in (1, 2)}
    certificate = certificate_of(acceptance(tmp_path, half, nodes=4, device="NVIDIA B300"))
    bar = judged(certificate, "peers")
    assert certificate.verdict == "undecided"
    assert [finding.hosts for finding in bar.findings if finding.kind == "node"] == [
        ("node2",),
        ("node3",),
    ]
    assert "which differ as much among themselves" in bar.findings[0].text
    assert any("the others may be slow" in finding.text for finding in certificate.cluster)
    twice = confirm_suspects([bar, replace(bar, stage="memory")])
    assert {finding.verdict for one in twice for finding in one.findings} == {"undecided"}


def test_nodes_with_another_device_are_judged_by_its_figure(tmp_path: Path) -> None:
    slow = dict.fromkeys(range(4), SLOW)
    certificate = certificate_of(
        acceptance(tmp_path, slow, nodes=4, other={"node4": "NVIDIA B300"})
    )
    assert [finding.hosts for finding in judged(certificate, "reference").findings] == [
        ("node1",),
        ("node2",),
        ("node3",),
    ]


def test_each_type_of_device_is_held_to_its_own_figure_and_one_without_is_said_not_to_be_tested(
    tmp_path: Path,
) -> None:
    bare = SUITE.replace(", peers: 3%, earlier: 5%", "")
    folder = acceptance(
        tmp_path / "two", {3: SLOW}, nodes=4, suite=bare, other={"node4": "NVIDIA B300"}
    )
    other = REFERENCE.replace("NVIDIA H200", "NVIDIA B300")
    folder.change(lambda record: replace(record, references=(REFERENCE, other)))
    certificate = certificate_of(folder)
    found = {
        bar.hosts: [finding.hosts for finding in bar.findings]
        for bar in certificate.judged
        if bar.kind == "reference"
    }
    assert found == {("node1", "node2", "node3"): [], ("node4",): [("node4",)]}
    certificate = certificate_of(
        acceptance(tmp_path / "one", {}, nodes=4, suite=bare, other={"node4": "NVIDIA B300"})
    )
    reasons = [
        reason for of, reason in certificate.not_tested.items() if "reference figures of" in of
    ]
    assert reasons == [
        "there is none for gemm tflops_rank size=8192: devices that are all equally slow would pass"
    ]
    assert verdicts(certificate)["node4"] == "undecided" and certificate.verdict == "undecided"
    (finding,) = [
        finding for bar in certificate.judged for finding in bar.findings if bar.kind == "reference"
    ]
    assert finding.hosts == ("node4",) and "no reference figure for NVIDIA B300" in finding.text


def test_other_work_on_a_node_leaves_open_whether_it_changed_more_than_its_peers() -> None:
    before = {"spec": "{}", "units": {f"node{n}": [100.0, 101.0, 100.5] for n in range(1, 6)}}
    units = [
        Unit(
            "node",
            f"node{n}",
            (f"node{n}",),
            (100.2, 100.9, 100.4) if n < 5 else (60.0, 60.6, 60.3),
            "",
        )
        for n in range(1, 6)
    ]
    group = Group(
        "gemm", "gemm", "tflops_rank", "TFLOP/s", False, {}, {}, "5n1g", {}, tuple(units), ("r1",)
    )
    known = {"id": "may", "measured": {dump_group("gemm", group)[0]: before}}
    for loaded, verdict in ((frozenset[str](), "fail"), (frozenset(["node5"]), "undecided")):
        bar = against_earlier("gemm", replace(group, loaded=loaded), 0.05, known, 5)
        assert isinstance(bar, Judged) and [(f.subject, f.verdict) for f in bar.findings] == [
            ("node5", verdict)
        ]


def test_shares_of_bars_are_written_as_they_are_judged(tmp_path: Path) -> None:
    fine = SUITE.replace("peers: 3%", "peers: 0.4%")
    bar = judged(certificate_of(acceptance(tmp_path, {}, nodes=4, suite=fine)), "peers")
    assert "none slower than its peers by more than 0.4%, where one 0.8% slower is found" in bar.bar


def test_two_bars_of_a_metric_judge_its_reference_once(tmp_path: Path) -> None:
    bar = "{metric: tflops_rank, at: {size: 8192}, "
    twice = SUITE.replace(
        f"bars: [{bar}peers: 3%, earlier: 5%}}]", f"bars: [{bar}peers: 3%}}, {bar}earlier: 5%}}]"
    )
    assert twice != SUITE
    (finding,) = judged(
        certificate_of(acceptance(tmp_path, {2: SLOW}, nodes=4, suite=twice)), "reference"
    ).findings
    assert finding.hosts == ("node3",)


def test_a_host_may_be_named_as_the_whole_is_and_other_work_on_it_leaves_open_what_it_was() -> None:
    before = {"spec": "{}", "units": {"cluster": [100.0, 101.0, 100.5]}}
    unit = Unit("node", "cluster", ("cluster",), (50.0, 50.1, 50.2), "")
    group = Group(
        "gemm", "gemm", "tflops_rank", "TFLOP/s", False, {}, {}, "1n1g", {}, (unit,), ("r1",)
    )
    known = {"id": "may", "measured": {dump_group("gemm", group)[0]: before}}
    loaded = against_earlier("gemm", replace(group, loaded=frozenset(["cluster"])), 0.05, known, 1)
    assert isinstance(loaded, Judged) and [finding.verdict for finding in loaded.findings] == [
        "undecided"
    ]
    bar = against_earlier("gemm", group, 0.05, known, 1)
    assert isinstance(bar, Judged) and [
        (finding.kind, finding.hosts) for finding in bar.findings
    ] == [("node", ("cluster",))]


def test_a_node_that_no_bar_is_about_is_open_and_the_reason_is_among_what_was_not_tested(
    tmp_path: Path,
) -> None:
    none = SUITE.partition("    bars:")[0]
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=3, suite=none))
    assert certificate.verdict == "undecided"
    assert "no bar covers it" in certificate.not_tested["node[1-3]"]


def test_the_first_acceptance_by_earlier_ones_alone_is_open_and_says_what_would_decide_it(
    tmp_path: Path,
) -> None:
    alone = SUITE.replace("peers: 3%, ", "")

    def certified(name: str, suite: str, device: str = "NVIDIA B300") -> Certificate:
        made = acceptance(tmp_path, {}, nodes=2, suite=suite, device=device, name=name)
        return certificate_of(made)

    first = certified("a1", alone)
    bar = judged(first, "earlier")
    assert (first.verdict, bar.as_dict()["verdict"]) == ("undecided", "undecided")
    assert bar.got == "no acceptance of these hosts with this suite has passed before"
    assert [finding.subject for finding in bar.findings] == ["node1", "node2"]
    shown = "\n".join(lines(first))
    assert "to decide it: a figure for NVIDIA B300 in suites/references, or expect: in" in shown
    assert "than when last accepted, in 9 of 10" not in shown
    bound = alone.replace("steps: 6,", 'steps: 6, expect: "tflops_rank >= 600 size=8192",')
    for passed in (certified("a2", bound), certified("a3", alone, "NVIDIA H200")):
        assert passed.verdict == "pass"
        assert "earlier" not in [bar.kind for bar in passed.judged]


def test_runs_that_fail_alike_are_one_finding(tmp_path: Path) -> None:
    folder = acceptance(tmp_path, {}, nodes=3)
    runs = folder.bench(folder.record().attempts[0].bench_id).runs()
    for run in runs[:2]:
        error = RunError(
            "rank 2 was killed by signal 9", kind="rank_failed", host="node3", run_id=run.run_id
        )
        write_outcome(run, RecordedOutcome("failed", error, {}, {}, True))
    (finding,) = judged(certificate_of(folder), "runs").findings
    assert finding.text.endswith(", in 2 runs") and len(finding.evidence) == 2
    for run, port in zip(runs[:2], (29501, 29502), strict=True):
        said = f"last output: port {port} is taken"
        error = RunError(
            "rank 2 ended with exit code 1",
            kind="rank_failed",
            host="node3",
            run_id=run.run_id,
            cause=said,
        )
        write_outcome(run, RecordedOutcome("failed", error, {}, {}, True))
    (finding,) = judged(certificate_of(folder), "runs").findings
    assert (
        finding.text.endswith(", in 2 runs: last output: port 29501 is taken")
        and len(finding.evidence) == 2
    )


def test_a_bar_that_no_value_is_about_leaves_the_verdict_open(tmp_path: Path) -> None:
    misspelt = SUITE.replace("metric: tflops_rank", "metric: tflop_rank")
    certificate = certificate_of(acceptance(tmp_path, {}, nodes=3, suite=misspelt))
    (finding,) = judged(certificate, "values").findings
    assert (
        certificate.verdict == "undecided"
        and "no run has a value of tflop_rank size=8192" in finding.text
    )
    assert "tflops_rank" in finding.text


def test_an_acceptance_that_is_not_over_is_open(tmp_path: Path) -> None:
    folder = acceptance(tmp_path, {}, nodes=3)
    folder.change(lambda record: replace(record, over={"checks": ""}))
    certificate = certificate_of(folder)
    assert (
        certificate.verdict == "undecided" and certificate.not_tested["gemm"] == "not reached yet"
    )


def test_the_page_has_every_verdict_and_nothing_of_a_node_becomes_markup(tmp_path: Path) -> None:
    check = {**CHECK, "found": "<script>alert(1)</script>", "verdict": "failed"}
    certificate = certificate_of(acceptance(tmp_path, {0: SLOW}, nodes=3, checks=[check]))
    page = render(certificate)
    assert "<script" not in page and "&lt;script&gt;" in page and page == render(certificate)
    assert (
        page.count('class="verdict fail"') >= 4 and "sha256-" in page and "takes about 5h" in page
    )
    text = "\n".join(lines(certificate))
    assert text.startswith("small on node[1-3]: fail") and "nodes, pass: node3" in text


def test_the_sources_of_reference_figures_are_of_the_acceptance_and_not_of_this_version(
    tmp_path: Path,
) -> None:
    folder = acceptance(tmp_path, {}, nodes=3)
    stricter = (
        REFERENCE.replace("668.76", "900").replace("670", "950").replace("a table", "a dream")
    )
    folder.change(lambda record: replace(record, references=(stricter,)))
    bar = judged(certificate_of(folder), "reference")
    assert bar.source == "a dream" and bar.verdict == "fail"


def test_a_device_that_is_suspect_in_two_stages_fails_and_in_one_stays_open() -> None:
    def bar(stage: str, subject: str, kind: str = "peers") -> Judged:
        finding = Finding(
            "node",
            subject,
            ("node1",),
            "undecided",
            "8% slower",
            "more repeats",
            (),
            kind == "peers",
        )
        return Judged(stage, kind, "", "", "", ("node1",), (finding,))

    both = confirm_suspects([bar("gemm", "node1 device 1"), bar("memory", "node1 device 1")])
    assert [one.verdict for one in both] == ["fail", "fail"] and both[0].findings[
        0
    ].text == "8% slower, as in gemm and memory"
    for others in (
        [bar("gemm", "node1 device 1"), bar("gemm", "node1 device 1")],
        [bar("gemm", "node1 device 1"), bar("memory", "node1 device 2")],
        [bar("gemm", "node1 device 1"), bar("memory", "node1 device 1", "earlier")],
    ):
        assert {one.verdict for one in confirm_suspects(others)} == {"undecided"}
