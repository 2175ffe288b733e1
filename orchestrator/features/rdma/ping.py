"""Messages by RDMA verbs between all pairs of nodes, with ``ibv_rc_pingpong`` of rdma-core."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.checks.check import Check
from orchestrator.checks.facts import NodeFacts
from orchestrator.features.rdma.links import (
    Link,
    active_ports,
    judge_links,
    links,
    rounds,
    still_counters,
    without_port,
    without_program,
    words_of,
)
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each, each_or_raise

_COUNT = (
    "grep -s . /sys/class/infiniband/*/ports/*/counters/port_xmit_*"
    " /sys/class/infiniband/*/ports/*/hw_counters/sent_pkts"
)
_LOOK = f"command -v ibv_rc_pingpong >/dev/null || exit 9; ibv_devinfo 2>&1; {_COUNT}"
_MISSING = 9
_ANSWER_S, _PING_S = 30.0, 10
_PORTS = range(20000, 30000)
"""Below those that Linux gives to clients, so that one is seldom in use."""
# A client comes before its server listens, and then ends at once with this message.
_PING = """PATH=$PATH:/usr/sbin:/usr/local/bin
command="timeout -k 1 {limit} ibv_rc_pingpong -d {device} -i {port} -p {tcp} -n 10 -m {mtu} {gid}"
[ -n "{server}" ] || exec $command
tries=0
until said=$($command {server} 2>&1); code=$?; [ $code != 1 ] || [ $tries = {limit}0 ]; do
  case $said in *"ouldn't connect"*) sleep 0.1; tries=$((tries + 1));; *) break;; esac
done
echo "$said"; exit $code"""


def ping_all(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Check]:
    """Let every active port of each node exchange messages with its peer on each other node, and
    return what that shows. Each node is in one pair at a time, so that N nodes take N rounds.
    """
    hosts = {host.name: host for host in cluster.hosts}

    def ask(command: str, name: str) -> str | None:
        done = cluster.nodes[name].transport.run(["sh", "-c", command], timeout_s=_ANSWER_S)
        return None if done.code == _MISSING else done.stdout.decode(errors="replace")

    told = each_or_raise(hosts, partial(ask, _LOOK))
    active = {
        name: active_ports(text, hosts[name], facts[name])
        for name, text in told.items()
        if text is not None
    }
    ports = {name: found for name, found in active.items() if found}
    bare = [name for name, found in active.items() if not found and ports]
    checks = [without_program(name) for name, text in told.items() if text is None]
    checks += without_port(bare)
    tried: list[Link] = []
    broken: dict[Link, str] = {}
    for pairs in rounds(list(ports)):
        now = [link for pair in pairs for link in links(pair, ports)]
        tried += now
        broken |= _ping(cluster, hosts, now)
    good = [link for link in tried if link not in broken]
    checks += still_counters(good, told, each_or_raise(ports, partial(ask, _COUNT)))
    return checks + judge_links(ports, tried, broken)


def _ping(cluster: Cluster, hosts: Mapping[str, Host], now: Sequence[Link]) -> dict[Link, str]:
    """Return the links that have exchanged nothing, with what one of their ends has said."""
    listening = dict(zip(now, random.sample(_PORTS, len(now)), strict=True))
    ends = [(link, is_server) for link in now for is_server in (True, False)]

    def run(end: tuple[Link, bool]) -> str:
        link, is_server = end
        name, port = link.there if is_server else link.here
        script = _PING.format(
            limit=_PING_S, device=port.device, port=port.port, tcp=listening[link], mtu=link.mtu,
            gid="" if port.gid is None else f"-g {port.gid}",
            server="" if is_server else hosts[link.there[0]].address,
        )  # fmt: skip
        transport = cluster.nodes[name].transport
        done = transport.run(["sh", "-c", script], timeout_s=3 * _PING_S + _ANSWER_S)
        if done.code == 0:
            return ""
        return words_of(hosts[name], (done.stderr + done.stdout).decode(errors="replace"))

    said, errors = each(ends, run)
    wrong = {end: words for end, words in said.items() if words}
    wrong |= {end: str(error) for end, error in errors.items()}
    # The client is the one that measures; where it has nothing to say, its server may.
    return {
        link: wrong.get((link, False)) or wrong[link, True]
        for link in now
        if (link, False) in wrong or (link, True) in wrong
    }
