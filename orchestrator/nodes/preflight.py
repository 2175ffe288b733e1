"""The facts of every node, captured on all of them at once; `orchestrator.checks` judges them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from orchestrator.checks import told_facts
from orchestrator.checks.facts import unpacked
from orchestrator.errors import OrchError, RunError
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.conversation import owner_words
from orchestrator.nodes.fanout import each
from orchestrator.plan import Framework

__all__ = ["capture"]


def capture(
    cluster: Cluster,
    framework: Framework | None,
    ports: Sequence[int] = (),
    *,
    names: Sequence[str] | None = None,
    briefly: bool = False,
) -> tuple[dict[str, dict[str, Any]], dict[str, OrchError]]:
    """Ask every connected node, or those named, for its facts. Returns (facts by host, errors by host).

    ``briefly``: where the framework can be told from what is installed, it is not started, which takes seconds; and among the
    facts is ``standing``, what they rest on.
    """
    probe = framework.probe if framework else "print('{}')"
    brief = {"distributions": list(framework.distributions)} if framework and briefly else {}

    def ask(name: str) -> dict[str, Any]:
        node = cluster.nodes[name]
        node.ask("status", timeout_s=30)
        earliest = time.time()
        answer = node.ask(
            "facts",
            timeout_s=150,
            python=str(node.host.vars.get("python", "python3")),
            probe=probe,
            probe_timeout_s=120,
            ports=list(ports),
            interface=node.host.vars.get("interface"),
            peer=_peer(cluster.hosts, name),
            data_dir=node.host.vars.get("data_dir"),
            programs=_programs(node.host, framework),
            **brief,
        )
        try:
            facts = {**answer["facts"], **told_facts(unpacked(answer["told"]))}
        except (ValueError, TypeError, AttributeError, LookupError) as error:  # whatever a strange node may have put there
            message = f"expected facts as the node runner packs them: {error}"
            raise RunError(message, kind="result_invalid", host=name, phase="preflight") from None
        if facts.get("held_by"):
            facts["held_by"] = owner_words(str(facts["held_by"]))
        facts["login_s"] = round(node.login_s, 3)
        if briefly:
            facts["standing"] = answer["standing"]
        # Somewhere between these two instants the node looked at its clock.
        facts["clock_off_s"] = round(min(0.0, facts["time"] - earliest) + max(0.0, facts["time"] - time.time()))
        facts["host_key"] = node.transport.host_key
        return facts

    return each(cluster.nodes if names is None else names, ask)


def _peer(hosts: Sequence[Host], name: str) -> str | None:
    """Return the address that a node is to find a way to: the master's, for the master another's; None where it is alone."""
    if len(hosts) < 2:
        return None
    return hosts[1 if hosts[0].name == name else 0].address


def _programs(host: Host, framework: Framework | None) -> list[str]:
    """Return the paths on the node of the programs that are not ours."""
    requires = framework.requires if framework else {}
    return [f"{host.vars[name]}/{holds}" for name, holds in requires.items() if host.vars.get(name)]
