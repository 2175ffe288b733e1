"""Files of other tools that name machines and are no list of hosts, refused by name: read as one,
they would lose settings.

>>> format_of("rank 0=node1 slot=0:0-3\\nrank 1=node2 slot=0:0-3\\n")
('a rankfile of Open MPI', 'pass the hostfile beside it')
>>> format_of("node1 slots=8\\nnode2 slots=8\\n")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ATTRIBUTE = r"[A-Za-z_][\w-]*(?:=[^,\s]*)?"
_COLUMN = r"[^,;\s\[\]]*"
_ONE_A_LINE = "write one host per line, without other columns"
_ADDRESSES = "write the addresses of its nodes, one per line"
_OUTPUT = "write one address per line: terraform output -json NAME | jq -r '.[]'"
_FORMATS = (
    (r"rank\s+\d+\s*=\s*\S+.*", "a rankfile of Open MPI", "pass the hostfile beside it"),
    (r"\S+\s+\d+\s+\S+@\S+\s+\S+", "$PE_HOSTFILE of Grid Engine", "pass its first two columns"),
    (r"\S+\s+\d+(?:,\d+)+(?:\s.*)?", "$LSB_AFFINITY_HOSTFILE of LSF", "pass $LSB_DJOB_HOSTFILE or $LSB_MCPU_HOSTS"),
    (r"\(?[^\s:=]+:[a-z]\w*=\d.*", "exec_vnode of PBS", "pass $PBS_NODEFILE"),
    (r"(?:\d+(?:\.\d+){3}|[\da-fA-F:]*::[\da-fA-F:]*)/\d+", "a network", "write its hosts, such as 10.0.0.[5-8]"),
    (r"[^\s/+]+/[\d*,-]+(?:\+[^\s/+]+/[\d*,-]+)*", "exec_host of PBS", "pass $PBS_NODEFILE"),
    (r"(?:\d+(?:\.\d+){3}|[\da-fA-F:]*::[\da-fA-F:]*)(?:\s+[A-Za-z][\w.-]*)+", "addresses with names, such as /etc/hosts",
     "write one host per line; addresses go into an inventory of orch (address:)"),
    (r"local\s+\d+.*|\S+\s+\d+\s+/\S+.*", "a procgroup of MPICH", _ONE_A_LINE),
    (r"(?:group|host)\s+\S+.*", "a nodelist of Charm++", _ONE_A_LINE),
    (rf"[\w.-]+(?:[,;]{_COLUMN})*[,;]\d+(?:[,;]{_COLUMN})*", "a table", _ONE_A_LINE),
)  # fmt: skip
"""(every line of a format, what it is, what to pass instead)."""
_FIRST_LINES = (
    (
        r"(?i:host|host_?names?|name|node|node_?name|nodelist|partition|server|machine|ip|address)[\s,;][^=]*",
        "a table",
        _ONE_A_LINE,
    ),
    (r"[A-Za-z][\w.-]*[,;]\s*\d+(?:\.\d+){3}", "a table", _ONE_A_LINE),
)
"""(the first line of several, what the text is, what to pass instead)."""
_HOST_LINE = re.compile(r"\S+(?:\s+\d+)?|.*[=,].*")
_SSH_LINE = re.compile(r"[A-Za-z]\w*(?:\s+|\s*=\s*)\S.*")
_SSH_KEY = re.compile(r"(?i:hostname|match|user|port|identityfile|proxyjump|include)[\s=].*")
_SLURM_LINE = re.compile(r"(?:NodeName|NodeHostName|PartitionName|JobId)=.*")
_MAPPINGS = (
    ({"apiVersion", "kind"}, "an object of Kubernetes", f"{_ADDRESSES}: kubectl get nodes -o wide"),
    ({"terraform_version"}, "the state of Terraform", _OUTPUT),
    ({"cluster_name", "provider"}, "the configuration of a Ray or SkyPilot cluster", _ADDRESSES),
    ({"num_machines", "machine_rank"}, "a configuration of accelerate", _ADDRESSES),
)
"""(keys at the top of a mapping, what it is, what to pass instead)."""
_GENDERS = re.compile(rf"[^\s=]+(?:\s+(?!ansible_){_ATTRIBUTE}(?:,{_ATTRIBUTE})*)?")


def format_of(text: str) -> tuple[str, str] | None:
    """Return the format that every line of a text has, and what to pass instead; None without one."""
    stripped = [re.split(r"\s#", line, maxsplit=1)[0].strip() for line in text.splitlines()]
    lines = [line for line in stripped if line and line[0] not in "#;"]
    if not lines:
        return None
    for pattern, name, hint in _FORMATS:
        if all(re.fullmatch(pattern, line) for line in lines):
            return name, hint
    if any(map(_SLURM_LINE.fullmatch, lines)):
        return "records of Slurm", "pass what scontrol show hostnames prints"
    if (
        all(map(_SSH_LINE.fullmatch, lines))
        and any(map(_SSH_KEY.fullmatch, lines))
        and any(re.match(r"(?i)host\s", line) for line in lines)
    ):
        return (
            "an ssh configuration",
            "pass the names of its hosts; orch reads ssh's configuration for each of them",
        )
    if re.match(r"\[\s*[\"{]", text.lstrip()):
        return "a list in JSON", "write one host per line"
    for pattern, name, hint in _FIRST_LINES:
        if len(lines) > 1 and re.fullmatch(pattern, lines[0]):
            return name, hint
    has_list = any("," in part for line in lines for part in line.split()[1:2])
    if has_list and all(map(_GENDERS.fullmatch, lines)):
        return "a genders file", "pass what nodeattr -n ATTRIBUTE prints"
    if len(lines) > 1 and not any(map(_HOST_LINE.fullmatch, lines)):
        return "a table", _ONE_A_LINE
    return None


def is_groups_file(text: str) -> bool:
    """Return True for ``NAME: HOSTS`` on each line, where some hosts are ``@NAME``: no YAML."""
    lines = [line.strip() for line in text.splitlines()]
    rows = [line.partition(":") for line in lines if line and line[0] not in "#;"]
    values = [value.strip() for _, _, value in rows]
    return all(values) and any(value.startswith("@") for value in values)


def tool_of(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name the tool of a YAML or JSON mapping, and what to pass instead; None for a possible
    inventory.
    """
    values = list(body.values())
    if any(isinstance(value, dict) and {"hosts", "children"} & set(value) for value in values):
        return None
    if values and all(
        isinstance(value, dict) and {"sensitive", "value"} <= set(value) for value in values
    ):
        return "outputs of Terraform", _OUTPUT
    if (
        values
        and all(isinstance(value, str) for value in values)
        and any(map(re.compile(r"\[\d").search, values))
    ):
        return "groups of ClusterShell", "pass what nodeset -e @GROUP prints"
    found = (row for row in _MAPPINGS if row[0] <= set(body))
    return next(((name, hint) for _, name, hint in found), None)
