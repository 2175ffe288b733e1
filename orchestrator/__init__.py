"""A distributed job orchestrator over SSH that benchmarks deep-learning training on clusters.

    import orchestrator

    plan = orchestrator.prepare("resnet50", hosts="inventory/cluster.yaml", nodes=[1, 2, 4])
    bench = orchestrator.run(plan)
    bench.frame()

`load`, `prepare` and `run` are the Python interface (docs/api.md), with what they return and raise.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Nothing is imported before `orch` can tell of an interrupt.
if TYPE_CHECKING:
    from orchestrator.api.bench import Bench, load
    from orchestrator.api.plan import Plan, prepare, run
    from orchestrator.errors import OrchError
    from orchestrator.plan import Limits
    from orchestrator.version import __version__

__all__ = ["Bench", "Limits", "OrchError", "Plan", "__version__", "load", "prepare", "run"]

# Loaded when they are used: a program that only asks for the version, and every start of `orch`,
# does without.
_HOMES = {
    "Bench": "api.bench",
    "Limits": "plan",
    "OrchError": "errors",
    "Plan": "api.plan",
    "__version__": "version",
    "load": "api.bench",
    "prepare": "api.plan",
    "run": "api.plan",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
