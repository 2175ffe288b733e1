"""Libraries that `orch` needs for a part of its work alone, and the extra of the package that
installs each.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

from orchestrator.errors import ConfigError

EXTRAS = {"matplotlib": "plots", "pandas": "pandas"}
"""By the name under which it is imported."""


def need(library: str, use: str) -> None:
    """Raise ConfigError, with the command that installs it, unless a library of `EXTRAS` is there.
    ``use``: what needs it.
    """
    if find_spec(library) is None:
        raise ConfigError(
            f"expected {library}, but it is not installed",
            where=use,
            hint=f"pip install 'orch-bench[{EXTRAS[library]}]'",
        )
    if library == "matplotlib":  # it tells of a slow start in a line among ours
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
