"""A summary as JUnit XML for CI servers: one suite per series, one case per configuration, failed
runs as failures.

Format: the elements in the schema of the Jenkins xUnit plugin (``junit-10.xsd``).
"""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from orchestrator.report.cells import cells_by_name, lacking
from orchestrator.report.text import one_line
from orchestrator.results.entries import Row
from orchestrator.results.planned import Counts
from orchestrator.results.summary import Summary


def render(summary: Summary) -> str:
    """Return one XML document. A configuration fails unless every planned run has a number; its
    output is the numbers and their qualifications. A suite of its own stands for the whole bench,
    and fails if runs are missing; another lists configurations that were skipped as impossible."""
    root = Xml.Element("testsuites", name="orch")
    for series, rows in summary.by_series().items():
        failed = sum(row.n < row.planned for row in rows)
        suite = Xml.SubElement(
            root,
            "testsuite",
            name=one_line(series),
            tests=str(len(rows)),
            failures=str(failed),
            errors="0",
            skipped="0",
        )
        for row in rows:
            _case(suite, one_line(series), row)
    if summary.runs and summary.runs.measured < summary.runs.planned:
        _incomplete(root, summary.runs, summary.notes)
    if summary.skipped:
        _add_skipped(root, summary)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _incomplete(root: Xml.Element, runs: Counts, notes: tuple[str, ...]) -> None:
    suite = Xml.SubElement(
        root, "testsuite", name="bench", tests="1", failures="1", errors="0", skipped="0"
    )
    case = Xml.SubElement(suite, "testcase", name="all planned runs", classname="bench")
    message = f"{runs.measured} of {runs.planned} planned runs measured: {', '.join(runs.words())}"
    Xml.SubElement(case, "failure", message=message, type="run").text = "\n".join(
        map(one_line, notes)
    )


def _add_skipped(root: Xml.Element, summary: Summary) -> None:
    count = str(len(summary.skipped))
    suite = Xml.SubElement(
        root, "testsuite", name="impossible", tests=count, failures="0", errors="0", skipped=count
    )
    for configuration in summary.skipped:
        case = Xml.SubElement(
            suite, "testcase", name=one_line(str(configuration)), classname="impossible"
        )
        Xml.SubElement(case, "skipped", message=one_line(configuration.reason))


def _case(suite: Xml.Element, series: str, row: Row) -> None:
    shown = cells_by_name(row)
    case = Xml.SubElement(suite, "testcase", name=shown.pop("case"), classname=series)
    if row.n < row.planned:
        message = (
            f"{row.planned - row.n} of {row.planned} runs have no number: {', '.join(lacking(row))}"
        )
        failure = Xml.SubElement(case, "failure", message=message, type="run")
        failure.text = "\n".join(map(one_line, row.failures))
    numbers = [f"{name}: {value}" for name, value in shown.items()]
    Xml.SubElement(case, "system-out").text = "\n".join(
        [*numbers, *map(one_line, row.qualifications)]
    )
