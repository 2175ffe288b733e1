"""The connections of a command, as far as they are decided before a packet is sent."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.transport import Trust
from orchestrator.transport.connections import Connections


def test_a_node_of_a_lab_is_not_looked_for_outside_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.11.0.2 may be a real machine there. Refused before anything is contacted, when a
    connection is made anew as well.
    """
    host = Host("node1", "10.11.0.2", vars={"lab_private": "/home /tmp"})
    monkeypatch.delenv("ORCH_LAB", raising=False)
    with closing(Connections(Trust(tmp_path / "known_hosts"))) as connections:
        for begin in (connections.prepare, connections.connect):
            with pytest.raises(ConfigError, match="node of a lab") as refusal:
                begin(host)
            assert "orch lab exec" in refusal.value.hint
        monkeypatch.setenv("ORCH_LAB", "marker")
        assert callable(connections.prepare(host))
