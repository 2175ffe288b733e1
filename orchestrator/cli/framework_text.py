"""The declarations of a framework folder, in lines and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.option_values import as_written
from orchestrator.plan.trial import read_variables


def document(folder: FrameworkFolder) -> dict[str, Any]:
    """Return a folder as JSON: everything that it declares, the host variables that it reads, and
    the files of its payload.
    """
    values = asdict(folder.framework)
    return {**values, "reads": list(read_variables(folder)), "payload": sorted(folder.payload)}


def declaration(folder: FrameworkFolder) -> Iterator[str]:
    """Yield the lines about a folder."""
    framework = folder.framework
    log = framework.log
    yield f"{framework.name}: {framework.title}"
    yield f"  folder    {framework.folder}"
    yield f"  measures  {framework.measure.noun}"
    yield f"  models    {', '.join(framework.models)}"
    for device, types in framework.dtypes.items():
        names = [
            name if flag in (name, "") else f"{name} (its {flag})" for name, flag in types.items()
        ]
        yield f"  {device:8}  {', '.join(names)}"
    if "loader" not in framework.measure.fixed:
        yield f"  loaders   {', '.join(framework.loaders)}"
    defaults = {
        key: value
        for key, value in framework.defaults.items()
        if key not in framework.measure.fixed
    }
    yield f"  defaults  {_pairs(defaults)}"
    for device, values in framework.device_defaults.items():
        yield f"            on {device}: {_pairs(dict(values))}"
    if framework.requires:
        yield f"  requires  {', '.join(f'vars.{name} with {file}' for name, file in framework.requires.items())}"
    if variables := read_variables(folder):
        yield f"  reads     {', '.join(f'vars.{name}' for name in variables)}"
    yield f"  launch    {framework.launch.replace('_', ' ')}: {', '.join(file.path for file in framework.files)}"
    yield f"  payload   {', '.join(sorted(folder.payload))}"
    nodes = f"{log.nodes} node" if log.nodes == "every" else f"the {log.nodes} node"
    scope = f"; a rate in it is of scope {log.scope}" if framework.measure.has_samples else ""
    yield f"  log       {', '.join(log.files)} of {nodes}{scope}"
    for pattern in (
        *log.patterns,
        *log.readings,
        *filter(None, (log.rank, log.rank_parts, log.closing, log.prefix)),
    ):
        yield f"            {pattern}"
    for name, rule in framework.published.get("rules", {}).items():
        yield f"  published rule {name}: {rule['title']}"
    if log.metrics:
        yield "  metrics"
    width = max((len(metric.name) for metric in log.metrics), default=0)
    for metric in log.metrics:
        keys = f" by {', '.join(metric.key_columns)}" if metric.key_columns else ""
        words = metric.help or (f"{metric.says}, as the program says it" if metric.says else "")
        meaning = f": {words}" if words else ""
        yield f"    {metric.name:{width}}  {metric.unit}{keys}, {metric.better} is better{meaning}"
    if framework.options:
        yield "  options"
    width = max(map(len, framework.options), default=0)
    for name, option in framework.options.items():
        choices = f", one of {', '.join(map(as_written, option.choices))}" if option.choices else ""
        least = "" if option.minimum is None else f", at least {option.minimum:g}"
        most = "" if option.maximum is None else f", at most {option.maximum:.10g}"
        on = "".join(
            f", {as_written(value)} on {device}" for device, value in option.device_default.items()
        )
        yield f"    {name:{width}}  {as_written(option.default)}{on} ({option.type}{choices}{least}{most}): {option.help}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {as_written(value)}" for name, value in values.items())
