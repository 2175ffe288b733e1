"""Capture the facts of all nodes at the same time; `orchestrator.checks` judges them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.checks import parse_facts
from orchestrator.checks.facts import unpack_facts
from orchestrator.checks.interfaces import with_interfaces
from orchestrator.devices.gpu_states import without_places
from orchestrator.errors import OrchError, RunError
from orchestrator.inventory import Host
from orchestrator.inventory.reserved import LAB_VARIABLE
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.conversation import owner_words
from orchestrator.nodes.fanout import each
from orchestrator.plan import Framework
from orchestrator.plan.containers import container_of, inside
from orchestrator.plan.environment import env_file, visible_devices
from orchestrator.plan.payload import probe_source


def capture(
    cluster: Cluster,
    framework: Framework | None,
    ports: Sequence[int] = (),
    *,
    container: str = "",
    names: Sequence[str] | None = None,
    briefly: bool = False,
    with_data: bool = True,
) -> tuple[dict[str, dict[str, Any]], dict[str, OrchError]]:
    """Request the facts of every connected node, or of ``names``. Returns (facts by host, errors by
    host).

    ``briefly``: if the installed packages show that the framework is present, it is not started,
    which would take seconds; and the facts include ``standing``, what they depend on.
    ``with_data``: look at the data set too, which may take half a minute. ``container`` replaces
    the container of the hosts, as in a spec; facts that it changes are looked at inside.
    """
    probe = framework.probe if framework else "print('{}')"
    capture_id = secrets.token_hex(8)
    brief = {"distributions": list(framework.distributions)} if framework and briefly else {}

    def ask(name: str) -> dict[str, Any]:
        node = cluster.nodes[name]
        node.ask("status", timeout_s=30)
        around = container_of(node.host, container)
        host = inside(node.host, around)
        look = {}
        if around:
            look = {
                "container": around.look(
                    f"orch-preflight-{capture_id}-{name}", probe_source().decode()
                )
            }
        earliest = time.time()
        answer = node.ask(
            "facts",
            timeout_s=240 if around else 150,
            python=list(host.python),
            environment=env_file(framework, host, {}) + visible_devices(node.host),
            probe=probe,
            probe_timeout_s=120,
            ports=list(ports),
            capture=capture_id,
            interface=node.host.vars.get("interface"),
            peers=_peers(cluster.hosts, name),
            data_dir=node.host.vars.get("data_dir") if with_data else None,
            programs=_programs(node.host, framework),
            **brief,
            **look,
        )
        try:
            devices = node.host.vars.get("cuda_visible_devices")
            reports = cluster.redaction.value(unpack_facts(answer["told"]))
            facts = {
                **answer["facts"],
                **parse_facts(reports, None if devices is None else str(devices)),
            }
            # The node read its clock between these two instants.
            facts["clock_off_s"] = round(
                min(0.0, facts["time"] - earliest) + max(0.0, facts["time"] - time.time())
            )
            if LAB_VARIABLE in node.host.vars:
                facts = without_places(facts)
        except (
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            OverflowError,
        ) as error:  # a node may send anything
            message = f"expected facts as the node runner packs them: {error}"
            raise RunError(message, kind="result_invalid", host=name, phase="preflight") from None
        if facts.get("held_by"):
            facts["held_by"] = owner_words(str(facts["held_by"]))
        facts["login_s"] = round(node.login_s, 3)
        if briefly:
            facts["standing"] = answer["standing"]
        facts["host_key"] = node.transport.host_key
        return facts

    facts, errors = each(cluster.nodes if names is None else names, ask)
    return with_interfaces(cluster.hosts, facts), errors


def _peers(hosts: Sequence[Host], name: str) -> list[str]:
    """Return the addresses to which a node must have a route: the master, both neighbours in a
    ring, and the node across.

    The master itself needs a route to the second node. These few show which network leads to all.
    Empty for one host.
    """
    place = next(place for place, host in enumerate(hosts) if host.name == name)
    count = len(hosts)
    others = [hosts[other % count] for other in (0, place + 1, place - 1, place + count // 2)]
    return list(dict.fromkeys(host.address for host in others if host.name != name))


def _programs(host: Host, framework: Framework | None) -> list[str]:
    """Return the paths of third-party programs on the node."""
    requires = framework.requires if framework else {}
    return [f"{host.vars[name]}/{holds}" for name, holds in requires.items() if host.vars.get(name)]
