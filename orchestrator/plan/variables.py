"""The environment variables that an experiment may set: all except those that say what a process of
a run is.
"""

from __future__ import annotations

import re

from orchestrator.errors import ConfigError
from orchestrator.inventory.reserved import PLACED, RESERVED


def check_variable(name: str, where: str) -> None:
    """Raise ConfigError unless an experiment may set an environment variable of this name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise ConfigError(
            f"expected a variable name of letters, digits and '_', got {name!r}", where=where
        )
    if name in PLACED or name.startswith(RESERVED):
        hint = "use --nodes, --gpus or --shape" if name in PLACED else "use another name"
        raise ConfigError(
            f"expected a variable that orch does not set itself, got {name}", where=where, hint=hint
        )
