"""Hosts that the project remembers as suspect or out are left out of a bench: ``--with-suspects``
keeps the suspect ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.api.selection import Selection
from orchestrator.cli.options import say

if TYPE_CHECKING:
    from collections.abc import Collection


def without_suspects(
    selection: Selection, keep: bool = False, failed: Collection[str] = ()
) -> Selection:
    """Return the selection without hosts that are suspect or out, and tell it on stderr.

    ``keep``: without those that are out, and of those that are suspect without those that have
    ``failed`` again.
    """
    from orchestrator.api import selection as hosts

    stay = [host.name for host in selection.hosts if host.name not in failed] if keep else ()
    return hosts.without_suspects(selection, stay, say=say)
