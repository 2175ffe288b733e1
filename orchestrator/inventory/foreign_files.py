"""Files of other tools that name machines and are no list of hosts, refused by name: read as one, they would lose settings.

>>> format_of("rank 0=node1 slot=0:0-3\\nrank 1=node2 slot=0:0-3\\n")
('a rankfile of Open MPI', 'pass the hostfile beside it')
>>> format_of("node1 slots=8\\nnode2 slots=8\\n")
"""

from __future__ import annotations

import re

__all__ = ["format_of"]

_ATTRIBUTE = r"[A-Za-z_][\w-]*(?:=[^,\s]*)?"
_COLUMN = r"[^,;\s\[\]]*"
_ONE_A_LINE = "write one host per line, without other columns"
_FORMATS = (
    (r"rank\s+\d+\s*=\s*\S+.*", "a rankfile of Open MPI", "pass the hostfile beside it"),
    (r"\S+\s+\d+\s+\S+@\S+\s+\S+", "$PE_HOSTFILE of Grid Engine", "pass its first two columns"),
    (r"\S+\s+\d+(?:,\d+)+(?:\s.*)?", "$LSB_AFFINITY_HOSTFILE of LSF", "pass $LSB_DJOB_HOSTFILE or $LSB_MCPU_HOSTS"),
    (r"\(?[^\s:=]+:[a-z]\w*=\d.*", "exec_vnode of PBS", "pass $PBS_NODEFILE"),
    (r"[^\s/+]+/[\d*,-]+(?:\+[^\s/+]+/[\d*,-]+)*", "exec_host of PBS", "pass $PBS_NODEFILE"),
    (r"(?i:host|hostname|match|user|port|identityfile|proxyjump|include)\s+\S.*", "an ssh configuration",
     "pass the names of its hosts; orch reads ssh's configuration for each of them"),
    (r"(?:\d+(?:\.\d+){3}|[\da-fA-F:]*::[\da-fA-F:]*)(?:\s+[A-Za-z][\w.-]*)+", "addresses with names, such as /etc/hosts",
     "write one host per line; addresses go into an inventory of orch (address:)"),
    (r"local\s+\d+.*|\S+\s+\d+\s+/\S+.*", "a procgroup of MPICH", _ONE_A_LINE),
    (r"(?:group|host)\s+\S+.*", "a nodelist of Charm++", _ONE_A_LINE),
    (rf"[\w.-]+(?:[,;]{_COLUMN})*[,;]\d+(?:[,;]{_COLUMN})*", "a table", _ONE_A_LINE),
)  # fmt: skip
"""(every line of a format, what it is, what to pass instead)."""
_FIRST_LINES = (
    (r"(?:NodeName|NodeHostName|PartitionName|JobId)=.*", "records of Slurm", "pass what scontrol show hostnames prints"),
    (r"(?i:host|host_?name|name|node|node_?name|nodelist|server|machine|ip|address)[\s,;][^=]*", "a table", _ONE_A_LINE),
    (r"[A-Za-z][\w.-]*[,;]\s*\d+(?:\.\d+){3}", "a table", _ONE_A_LINE),
)
"""(the first line of several, what the text is, what to pass instead)."""
_GENDERS = re.compile(rf"[^\s=]+(?:\s+(?!ansible_){_ATTRIBUTE}(?:,{_ATTRIBUTE})*)?")


def format_of(text: str) -> tuple[str, str] | None:
    """Return the name of a format of which every line of a text is, and what to pass instead; None for none of them."""
    stripped = [re.split(r"\s#", line, maxsplit=1)[0].strip() for line in text.splitlines()]
    lines = [line for line in stripped if line and line[0] not in "#;"]
    if not lines:
        return None
    for pattern, name, hint in _FORMATS:
        if all(re.fullmatch(pattern, line) for line in lines):
            return name, hint
    for pattern, name, hint in _FIRST_LINES:
        if len(lines) > 1 and re.fullmatch(pattern, lines[0]):
            return name, hint
    has_list = any("," in part for line in lines for part in line.split()[1:2])
    if has_list and all(map(_GENDERS.fullmatch, lines)):
        return "a genders file", "pass what nodeattr -n ATTRIBUTE prints"
    return None
