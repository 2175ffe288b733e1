"""A summary as JUnit XML for CI servers: one suite per series, one case per configuration, failed runs as failures.

Format: the elements in the schema of the Jenkins xUnit plugin (``junit-10.xsd``).
"""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from orchestrator.report.cells import cells_by_name
from orchestrator.report.text import one_line
from orchestrator.results.summary import Row, Summary

__all__ = ["render"]


def render(summary: Summary) -> str:
    """Return one XML document. A configuration with a failed run fails; its output is the numbers and their qualifications."""
    root = Xml.Element("testsuites", name="orch")
    for series, rows in summary.by_series().items():
        failed = sum(row.failed > 0 for row in rows)
        suite = Xml.SubElement(
            root, "testsuite", name=one_line(series), tests=str(len(rows)), failures=str(failed), errors="0", skipped="0"
        )
        for row in rows:
            _case(suite, one_line(series), row)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: Xml.Element, series: str, row: Row) -> None:
    shown = cells_by_name(row)
    case = Xml.SubElement(suite, "testcase", name=shown.pop("case"), classname=series)
    if row.failed:
        failure = Xml.SubElement(case, "failure", message=f"{row.failed} of {row.n + row.failed} runs failed", type="run")
        failure.text = "\n".join(map(one_line, row.failures))
    numbers = [f"{name}: {value}" for name, value in shown.items()]
    Xml.SubElement(case, "system-out").text = "\n".join([*numbers, *map(one_line, row.qualifications)])
