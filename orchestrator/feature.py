"""Features: each folder of `orchestrator.features` says what it adds to the core, and nothing else
knows it.

A feature registers itself by the name ``FEATURE`` in its `__init__`, which imports nothing but this
module: all of them are imported by `orch --help`. What a feature adds at an extension point is a
module, imported when that point is reached. Deleting the folder of a feature,
and its rows in setup.cfg, removes the feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Feature:
    """The parts that a feature adds to the core.

    ``commands`` lists the feature's commands by module: each is a function of the same name, with
    its line in the help under the heading ``group``. ``provides`` maps an extension point to the
    module of the feature that implements it:

    - ``inventory_format``: inventories that are not orch's own: ``read_path(path, source)`` for
      directories and programs, and ``read_text(kind, text, source, load_yaml, path)``, with a kind
      of `orchestrator.inventory.formats.recognise`; both return None for formats that they do not
      know
    - ``section``: sections that a summary and the page of a bench show beside its tables
      (`orchestrator.report.sections`)
    - ``remarks``: observations about a node or a stage, for a certificate: ``remarks(bench,
      results)`` yields (host, text), without a host for a remark about the stage
    - ``reference``: published figures that a bench is compared with
      (`orchestrator.report.references`)
    - ``log_rules``: other rules than orch's own by which logs are read
      (`orchestrator.results.log_rules`)
    - ``folder_check``: checks of files in a framework folder that the feature alone reads:
      ``table_faults(folder)`` returns errors, and ``rule_notes(framework, log, path)`` notes on its
      sample log
    - ``file_schema``: ``json_schema()`` of a file that users write, and ``KIND``, its name for
      `orch schema`
    - ``bench_group``: folders of several benches: ``GROUP``, their class, ``groups(runs)`` and
      ``group_at(path)`` find them as `orchestrator.record.bench_groups.BenchGroup`;
      ``contents(group)`` lists what its archive holds besides files, ``overview(group, links)`` is
      its page in a site, and ``resume(group, …)`` continues it
    - ``gate``: checks that a bench may run first on its hosts: ``describe_gate(…)``,
      ``run_gate(…)`` (`orchestrator.cli.suite_gate`)
    - ``past_acceptances``: the lines of `orch history` below the cells: ``past_acceptances(runs,
      cache)``
    - ``store``: sealed archives in places that a team shares: ``is_store(where)``,
      ``verify_store(…)``, ``history_from(…)``
    - ``bench_kind``: benches whose cells come round by round: ``KEYS``, one of which such a bench
      has in ``bench.json``; ``part_of(key, value)`` reads its value, ``scheduler(bench, plan,
      observe, hosts)`` decides the next runs, ``show(bench, as_json)`` prints the result,
      ``in_short(bench, planned, results)`` returns the lines of a table for people
    - ``extra_runs``: a run of each configuration that no table counts: ``read_extra_runs(text)``
      returns the `orchestrator.plan.bench.ExtraRuns` that ``--profile`` or a record asks for
    - ``host_audit``: checks that ``orch check --audit`` makes besides those of preflight:
      ``CATALOGUE``, their entries (`orchestrator.checks.catalogue`), and ``audit(cluster, facts)``,
      which returns what nodes told, by host, and the checks of it
    - ``variables``: variables of the environment: ``misspelt_variables(names)`` returns those that
      are almost one of NCCL, with that one
    - ``run_monitor``: watches a run for more than failures of its nodes
      (`orchestrator.controller.monitor`)
    """

    def __init__(
        self,
        commands: Mapping[str, Mapping[str, str]] = _NOTHING,
        group: str = "Set up",
        provides: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.commands = commands
        self.group = group
        self.provides = provides


@cache
def features() -> dict[str, Feature]:
    """Return the features by the names of their folders."""
    folder = import_module("orchestrator.features")
    names = sorted(path.name for path in Path(folder.__path__[0]).iterdir())
    modules = {
        name: import_module(f"{folder.__name__}.{name}")
        for name in names
        if name.isidentifier() and not name.startswith("_")
    }
    # A folder that was removed may have left its bytecode.
    return {name: module.FEATURE for name, module in modules.items() if hasattr(module, "FEATURE")}


def providers(point: str) -> Iterator[Any]:
    """Yield the modules that implement an extension point, by name of their features."""
    for name, feature in features().items():
        if module := feature.provides.get(point):
            yield import_module(f"orchestrator.features.{name}.{module}")
