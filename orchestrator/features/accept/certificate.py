"""The certificate of an acceptance: verdicts of every node and of the cluster, computed from the
files of the acceptance alone.

The same files give the same certificate on any machine, so `orch verify` computes it again.
Untested parts are listed in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator import yamlfile
from orchestrator.checks.facts import serials
from orchestrator.features.accept.bars import (
    against_others,
    against_references,
    confirm_suspects,
    without_figure,
)
from orchestrator.features.accept.criteria import (
    Answer,
    Evidence,
    answer_all,
    criteria_of,
    place_of,
)
from orchestrator.features.accept.earlier import against_earlier, dump_group, without_earlier
from orchestrator.features.accept.figures import UnitFigure, figures_of, without_reference
from orchestrator.features.accept.nodes import by_links
from orchestrator.features.accept.observations import AuditFinding, fold_audit
from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord
from orchestrator.features.accept.stages import Made, StageRun, read_stages
from orchestrator.features.accept.suite import (
    Bar,
    Reference,
    Suite,
    SuiteStage,
    references_of,
    suite_of,
)
from orchestrator.features.accept.units import CLUSTER, Group, groups_of
from orchestrator.features.accept.verdicts import FAIL, PASS, UNDECIDED, Finding, Judged, worst
from orchestrator.inventory import fold
from orchestrator.plan.spec import by_reason
from orchestrator.results.expectations import MET, NOT_MET

SCHEMA = 4
"""Of certificate.json. 1: first version. 2: `figures`, and `least` of what was judged. 3: `audit`,
`criteria` and their `criteria_source`. 4: `reference_seen` and `reference_devices` of figures."""
_PEERS = "peers"
_ALL_SLOW = "devices that are all equally slow would pass"
_UNJUDGED = (
    "no bar covers it, or none could be judged; passed checks and runs alone do not accept a node"
)


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict of a node, with its address and, by name, the identifiers of the machine and its
    devices.

    ``seen`` are observations of its runs that no bar judges, each with its stage: other ranks
    waited for it, a run hung because of it, lowered clocks, load by others, errors that its
    counters grew by, less power than the others.
    """

    host: str
    address: str
    serials: Mapping[str, str]
    verdict: str
    why: tuple[str, ...]
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdicts of one acceptance.

    ``verdict`` is the cluster's; ``links`` holds the links that did not pass. ``not_tested`` names
    stages and other tests that were left out, with the reasons. ``figures`` has the numbers that
    bars are about; ``measured`` the values that a later acceptance is compared with. ``audit`` has
    what an audit of the hosts found, and ``criteria`` the answers to public criteria: evidence, and
    no verdict.
    """

    acceptance_id: str
    created: str
    orch: str
    suite: str
    title: str
    device: str
    earlier: str
    verdict: str
    nodes: tuple[NodeVerdict, ...]
    links: tuple[Finding, ...]
    cluster: tuple[Finding, ...]
    stages: tuple[StageRun, ...]
    judged: tuple[Judged, ...]
    not_tested: Mapping[str, str]
    notes: tuple[str, ...]
    figures: tuple[UnitFigure, ...]
    measured: Mapping[str, Any]
    audit: tuple[AuditFinding, ...] = ()
    criteria: tuple[Answer, ...] = ()
    criteria_source: str = ""

    @property
    def unreferenced(self) -> Mapping[str, tuple[str, ...]]:
        """The devices that have no reference figure, and of what."""
        return without_reference(self.figures)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``certificate.json``."""
        judged = [bar.as_dict() for bar in self.judged]
        return {"schema": SCHEMA, **asdict(self), "judged": judged}

    def of_verdict(self, verdict: str) -> list[str]:
        """Return the hosts with a verdict."""
        return [node.host for node in self.nodes if node.verdict == verdict]


def certificate_of(folder: AcceptanceDir) -> Certificate:
    """Return the certificate of an acceptance, finished or not. Raises DataError for damaged files."""
    record = folder.record()
    document = yamlfile.loads(record.document, f"{folder.path.name}: suite")
    suite = suite_of(document, record.suite, record.device)
    references = [
        figure
        for number, text in enumerate(record.references)
        for figure in references_of(yamlfile.loads(text, f"reference {number}"))
    ]
    inspected = folder.checks()
    last_facts = {
        host: of_host
        for name in record.stages
        if name in inspected
        for host, of_host in inspected[name][0].items()
    }
    stages = read_stages(folder, record, suite, document, inspected)
    made = stages.made
    of_bars = _bars(made, references, record)
    judged = [*stages.judged, *of_bars.judged]
    not_tested = {
        **_what_was_left_out(record, suite, made, bool(last_facts)),
        **of_bars.not_compared,
    }
    for device, what in without_reference(of_bars.figures).items():
        not_tested[f"reference figures of {device}"] = (
            f"there is none for {', '.join(what)}: {_ALL_SLOW}"
        )
    findings = [finding for bar in judged for finding in bar.findings]
    nodes = tuple(
        replace(node, seen=tuple(stages.seen.get(node.host, ())))
        for node in _nodes(record, last_facts, judged, findings)
    )
    unjudged = [node.host for node in nodes if node.why == (_UNJUDGED,)]
    if unjudged:
        not_tested[fold(unjudged)] = _UNJUDGED
    verdict = worst([*(finding.verdict for finding in findings), *(node.verdict for node in nodes)])
    if verdict == PASS and (not made or set(record.stages) - set(record.over)):
        verdict = UNDECIDED
    audits = folder.audits().values()
    audited = [check for _, checks in audits for check in checks]
    told = {host: said for of_stage, _ in audits for host, said in of_stage.items()}
    evidence = Evidence(
        [check for _, found in inspected.values() for check in found] + audited,
        told,
        judged,
        of_bars.figures,
        _without_result(record, suite, made),
        place_of(told),
        record.device == "cuda",
    )
    criteria, answers = _answers(folder, record, evidence)
    return Certificate(
        record.acceptance_id,
        record.created,
        record.orch,
        record.suite,
        suite.title,
        record.device,
        str(record.earlier.get("id", "")),
        verdict,
        nodes,
        tuple(finding for finding in findings if finding.kind == "link"),
        tuple(finding for finding in findings if finding.kind == "cluster"),
        tuple(stages.runs),
        tuple(sorted(judged, key=lambda bar: record.stages.index(bar.stage))),
        not_tested,
        record.notes,
        of_bars.figures,
        of_bars.measured,
        fold_audit(audited),
        answers,
        criteria,
    )


def _answers(
    folder: AcceptanceDir, record: AcceptanceRecord, evidence: Evidence
) -> tuple[str, tuple[Answer, ...]]:
    """Return the source of the public criteria of an acceptance and the answers; empty without."""
    if not record.criteria:
        return "", ()
    criteria = criteria_of(yamlfile.loads(record.criteria, f"{folder.path.name}: criteria"))
    return criteria.source, answer_all(criteria, evidence)


def _without_result(record: AcceptanceRecord, suite: Suite, made: Sequence[Made]) -> dict[str, str]:
    """Return why stages that measure have no result."""
    done = {
        of_stage.stage.name for of_stage in made if any(run.is_good for run in of_stage.results)
    }
    reasons = {stage.name: "no run succeeded" for stage in suite.stages if stage.name not in done}
    left_out = {name.partition(",")[0]: why for name, why in record.left_out.items()}
    told = {name: why for name, why in {**left_out, **record.over}.items() if why}
    return {name: told.get(name, why) for name, why in reasons.items()}


@dataclass(frozen=True, slots=True)
class _OfBars:
    """The results of all bars.

    These are the measured values, as figures and for a later acceptance, the judgement of each bar,
    and the reasons why nodes could not be compared with others.
    """

    measured: Mapping[str, Any]
    figures: tuple[UnitFigure, ...]
    judged: Sequence[Judged]
    not_compared: Mapping[str, str]


def _bars(
    made: Sequence[Made], references: Sequence[Reference], record: AcceptanceRecord
) -> _OfBars:
    groups: list[tuple[SuiteStage, Bar, Group]] = []
    judged = []
    for of_stage in made:
        for bar in of_stage.stage.bars:
            about = groups_of(of_stage.bench, of_stage.summary, of_stage.results, bar)
            groups += [(of_stage.stage, bar, group) for group in about]
            if not about:
                judged.append(_without_value(of_stage, bar))
    # All comparisons of one kind together are one family, of which 1 % is the chance of any false
    # accusation.
    family = sum(len(group.units) for _, bar, group in groups if bar.peers)
    by_name = {dump_group(stage.name, group)[0]: (stage, group) for stage, _, group in groups}
    unit_count = sum(len(group.units) for _, group in by_name.values())
    not_compared = {}
    unjudged = []
    for stage, bar, group in groups:
        outcomes = {}
        if bar.peers:
            outcomes[_PEERS] = against_others(stage.name, group, bar.peers, family)
        if bar.earlier:
            outcomes["the last acceptance"] = against_earlier(
                stage.name, group, bar.earlier, record.earlier, unit_count
            )
        for against, outcome in outcomes.items():
            if isinstance(outcome, str):
                of_group = ""
                if record.earlier or against == _PEERS:
                    of_group = f"{stage.name}, {group.title} "
                not_compared[f"{of_group}against {against}"] = outcome
                if against != _PEERS:
                    unjudged.append((stage.name, group, outcome))
            else:
                judged.append(outcome)
        if (
            not bar.peers
            and not bar.earlier
            and (absolute := without_figure(stage.name, group, references))
        ):
            judged.append(absolute)
    figures: list[UnitFigure] = []
    for stage, group in by_name.values():
        judged += against_references(stage.name, group, references, unit_count)
        figures += figures_of(stage.name, group, references)
    for of_stage in made:
        judged += by_links(of_stage.stage.name, of_stage.results, record.device == "cpu")
        judged += _judge_expectations(of_stage)
    passing = {host for bar in judged for host in bar.hosts}
    for name, group, why in unjudged:
        if not any(passing.intersection(unit.hosts) for unit in group.units):
            judged.append(without_earlier(name, group, why))
    values = dict(dump_group(stage.name, group) for stage, group in by_name.values())
    return _OfBars(values, tuple(figures), confirm_suspects(judged), not_compared)


def _without_value(made: Made, bar: Bar) -> Judged:
    """Return the judgement of a bar that no value is about: a misspelt metric must not pass, nor a
    stage without a good run.
    """
    known = ", ".join(dict.fromkeys(row.metric for row in made.summary.rows if row.n)) or "none"
    text = f"no run has a value of {bar.words}; metrics with values: {known}"
    finding = Finding(
        "cluster",
        CLUSTER,
        made.hosts,
        UNDECIDED,
        text,
        "a run with this value, or a correction of the bar in the suite",
    )
    return Judged(
        made.stage.name,
        "values",
        f"{bar.words} is measured",
        "no value",
        "the suite",
        (),
        (finding,),
    )


def _judge_expectations(made: Made) -> list[Judged]:
    """Return the bounds that the choices of a stage have under ``expect``."""
    bars = []
    for judgement in made.summary.expected:
        findings: tuple[Finding, ...] = ()
        if judgement.verdict != MET:
            verdict = FAIL if judgement.verdict == NOT_MET else UNDECIDED
            decides = "" if verdict == FAIL else "more repeats of this stage"
            text = f"expected {judgement.expected}, got {judgement.got}"
            findings = (Finding("cluster", CLUSTER, made.hosts, verdict, text, decides),)
        bars.append(
            Judged(
                made.stage.name,
                "expected",
                judgement.expected,
                judgement.got,
                "the suite",
                made.hosts,
                findings,
            )
        )
    return bars


def _what_was_left_out(
    record: AcceptanceRecord, suite: Suite, made: Sequence[Made], checked: bool
) -> dict[str, str]:
    """Return the stages, hosts of a stage and comparisons that were left out, with the reasons."""
    not_tested = dict(record.left_out)
    names = {of_stage.stage.name: of_stage for of_stage in made}
    for stage in suite.stages:
        if stage.name not in record.stages:
            continue
        if reason := record.over.get(stage.name):
            not_tested[stage.name] = reason
        elif stage.name not in record.over:
            not_tested[stage.name] = "not reached yet"
        elif stage.name in names and (
            absent := [host for host in record.hosts if host not in names[stage.name].hosts]
        ):
            not_tested[f"{stage.name} on {', '.join(absent)}"] = "left out after an earlier failure"
    for of_stage in made:
        for reason, names_of_cells in by_reason(of_stage.bench.record().skipped).items():
            not_tested.setdefault(f"{of_stage.stage.name}, {names_of_cells}", reason)
        is_pairs = any(run.spec and run.spec.model == "pairs" for run in of_stage.results)
        if is_pairs and len(of_stage.hosts) < 3:
            not_tested[f"{of_stage.stage.name}, which link is slower"] = (
                "two nodes form a single pair, which has no other to compare with"
            )
    if not checked and "checks" not in not_tested:
        not_tested["checks"] = "no facts were captured"
    return not_tested


def _nodes(
    record: AcceptanceRecord,
    facts: Mapping[str, Any],
    judged: Sequence[Judged],
    findings: Sequence[Finding],
) -> tuple[NodeVerdict, ...]:
    """Return the verdict of every node: the worst of what names it, pass if a bar was about it,
    open if none was.
    """
    nodes = []
    for host, address in record.hosts.items():
        own = [finding for finding in findings if finding.kind == "node" and host in finding.hosts]
        was_tested = any(
            host in bar.hosts for bar in judged if bar.kind not in ("checks", "runs", "lost links")
        )
        verdict = worst(finding.verdict for finding in own) if own or was_tested else UNDECIDED
        why = tuple(dict.fromkeys(f"{finding.text}" for finding in own)) or (
            () if was_tested else (_UNJUDGED,)
        )
        nodes.append(NodeVerdict(host, address, serials(facts.get(host, {})), verdict, why))
    return tuple(nodes)
