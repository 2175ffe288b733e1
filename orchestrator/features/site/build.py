"""Build the site of a project: pages of what has changed, then the overviews, then everything in
place of the old one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from orchestrator import documents
from orchestrator.errors import DataError, OrchError
from orchestrator.features.site import overviews
from orchestrator.features.site.catalogue import (
    AcceptanceEntry,
    BenchEntry,
    bench_names,
    node_pasts,
    page_name,
)
from orchestrator.features.site.comparisons import comparison_jobs, write_comparisons
from orchestrator.features.site.folder import PAGES, STATE, check_target, keep_page, staging
from orchestrator.features.site.pages import acceptance_page, entry_of, mark_of
from orchestrator.pool import share_out
from orchestrator.record import BenchDir, Project
from orchestrator.record.bench_groups import BenchGroup, groups
from orchestrator.record.folder_cache import evidence_mark
from orchestrator.record.node_states import NodeState, past_states
from orchestrator.record.sealed import is_broken, seal_record
from orchestrator.record.state_file import read_json
from orchestrator.report.html.bench_page import bench_page, read
from orchestrator.report.html.navigation import links_of
from orchestrator.version import __version__

SCHEMA = 2
"""Of ``orch-site.json``. 1: first version. 2: kept cells have the drift of their bench."""
_WORTH = 12
"""More pages are made in several processes: a page takes a quarter of a second and more, the start
of a process a second.
"""


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a build: pages in the site, pages made now, and by name why a bench, run or
    acceptance is damaged."""

    pages: int
    made: int
    damaged: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BenchJob:
    """The page of a bench in ``runs``, to be written below ``folder``."""

    runs: Path
    name: str
    folder: Path
    home: str


@dataclass(slots=True)
class State:
    """The memory of the last build of a site: by name what its overviews show, and by page what
    each comparison was made of.
    """

    benches: dict[str, BenchEntry] = field(default_factory=dict)
    acceptances: dict[str, AcceptanceEntry] = field(default_factory=dict)
    comparisons: dict[str, str] = field(default_factory=dict)


def build(
    project: Project, target: Path, tell: Callable[[str], None] = lambda _: None, *, home: str = ""
) -> Built:
    """Build the site of a project in a folder, which is made, or replaced if it is a site. ``tell``
    gets its progress in words.

    ``home``: where the links of its front page to the page above it lead, as to `orch serve`.
    Damaged benches raise nothing. Raises OrchError as `check_target` and `staging` do.
    """
    path, key = check_target(target), _renderer(home)
    before = _state(path, key)
    runs = project.runs
    names = bench_names(runs)
    with staging(path) as new:
        now, made = State(), 0
        jobs = []
        for name in names:
            known = before.benches.get(name)
            if (
                known
                and known.mark == _mark(runs / name)
                and _keep_page(known, path, new, "benches")
            ):
                now.benches[name] = known
            else:
                jobs.append(BenchJob(runs, name, new, home))
        for entry in _run_jobs(jobs, write_benches, tell, "bench"):
            now.benches[entry.name] = entry
            made += entry.has_page
        for folder in groups(runs):
            name = folder.path.name
            accepted = before.acceptances.get(name)
            if not (
                accepted
                and accepted.mark == evidence_mark(folder.path)
                and _keep_page(accepted, path, new, "acceptances")
            ):
                accepted = _accept(
                    folder,
                    new,
                    [name for name in names if name.startswith(f"{folder.path.name}/")],
                    home,
                )
                made += not accepted.damaged
            now.acceptances[name] = accepted
        benches = sorted(now.benches.values(), key=lambda entry: entry.order)
        comparisons = list(comparison_jobs(runs, benches, new, home))
        changed = []
        for job in comparisons:
            now.comparisons[job.page] = job.mark
            old = path / "compare" / f"{job.page}.html"
            if before.comparisons.get(job.page) != job.mark or not keep_page(
                old, new / "compare" / old.name
            ):
                changed.append(job)
        made += sum(_run_jobs(changed, write_comparisons, tell, "comparison"))
        states, damaged = _node_states(project)
        damaged |= _damage(now)
        accepted_all = sorted(now.acceptances.values(), key=lambda entry: entry.order)
        earlier = {job.page: job.earlier_pages for job in comparisons}
        nodes = node_pasts(states, accepted_all, benches)
        site = overviews.Site(
            benches,
            accepted_all,
            nodes,
            earlier,
            damaged,
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        )
        for name, text in overviews.pages(site, home).items():
            (new / name).write_text(text, encoding="utf-8")
        (new / STATE).write_text(json.dumps(seal_record(_content(now, key))), encoding="ascii")
        pages = (
            len(PAGES)
            + len(comparisons)
            + sum(entry.has_page for entry in benches)
            + sum(not entry.damaged for entry in accepted_all)
        )
    return Built(pages, made, damaged)


def write_benches(jobs: Sequence[BenchJob]) -> list[BenchEntry]:
    """Write the pages of benches; return what overviews show of each."""
    return [_write_bench(job) for job in jobs]


def _write_bench(job: BenchJob) -> BenchEntry:
    mark = _mark(job.runs / job.name)
    try:
        whole = read(BenchDir.open(job.runs / job.name))
        text = bench_page(whole, links=links_of(page_name(job.name), job.home))
        entry = entry_of(whole, job.name, mark)
        data = text.encode()
    except (OrchError, OSError) as error:
        return BenchEntry(job.name, mark, damaged={job.name: str(error)})
    (job.folder / "benches" / f"{entry.page}.html").write_bytes(data)
    return entry


def _accept(folder: BenchGroup, new: Path, benches: Sequence[str], home: str) -> AcceptanceEntry:
    mark, name = evidence_mark(folder.path), folder.path.name
    entry, text = acceptance_page(folder, mark, links_of("", home), benches)
    if text:
        (new / "acceptances" / f"{page_name(name)}.html").write_text(text, encoding="utf-8")
    return entry


def _run_jobs(
    jobs: Sequence[Any],
    write: Callable[[Sequence[Any]], list[Any]],
    tell: Callable[[str], None],
    noun: str,
) -> Iterator[Any]:
    """Yield the result of each job; ``tell`` reports how many are done."""
    done = 0
    for results in share_out(write, jobs, worth=len(jobs) > _WORTH) if jobs else ():
        yield from results
        done += len(results)
        tell(f"{done} of {len(jobs)} {noun} pages made")


def _mark(folder: Path) -> str:
    return mark_of(BenchDir(folder))


def _keep_page(entry: BenchEntry | AcceptanceEntry, old: Path, new: Path, folder: str) -> bool:
    """Take the page of an entry over, if it has one. Return False if it is not there."""
    if (
        isinstance(entry, BenchEntry)
        and not entry.has_page
        or isinstance(entry, AcceptanceEntry)
        and entry.damaged
    ):
        return True
    name = f"{entry.page}.html"
    return keep_page(old / folder / name, new / folder / name)


def _node_states(project: Project) -> tuple[dict[str, tuple[NodeState, ...]], dict[str, str]]:
    try:
        return past_states(project.nodes), {}
    except DataError as error:
        return {}, {"nodes": str(error)}


def _damage(state: State) -> dict[str, str]:
    reasons = {
        name: why for entry in state.benches.values() for name, why in (entry.damaged or {}).items()
    }
    return reasons | {
        name: entry.damaged for name, entry in state.acceptances.items() if entry.damaged
    }


def _renderer(home: str) -> str:
    """Return a digest of what makes pages: another version, or another link to the page above,
    makes all of them anew.
    """
    folder = files("orchestrator.report.html")
    sources = sorted(
        (entry.name, entry.read_bytes()) for entry in folder.iterdir() if entry.is_file()
    )
    digest = hashlib.sha256(f"{SCHEMA} {__version__} {home}".encode())
    for name, data in sources:
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


def _content(state: State, key: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "orch": __version__,
        "renderer": key,
        "benches": [asdict(entry) for entry in state.benches.values()],
        "acceptances": [asdict(entry) for entry in state.acceptances.values()],
        "comparisons": state.comparisons,
    }


def _state(site: Path, key: str) -> State:
    """Return the state of a site, empty if it is damaged or of another version: then everything is
    made anew.
    """
    try:
        content = read_json(site / STATE)
        if (
            is_broken(content)
            or "seal" not in content
            or (content["schema"], content["renderer"]) != (SCHEMA, key)
        ):
            return State()
        benches = documents.read(tuple[BenchEntry, ...], content["benches"])
        accepted = documents.read(tuple[AcceptanceEntry, ...], content["acceptances"])
        return State(
            {entry.name: entry for entry in benches},
            {entry.name: entry for entry in accepted},
            documents.read(dict[str, str], content["comparisons"]),
        )
    except (OrchError, OSError, KeyError, TypeError, ValueError):
        return State()
