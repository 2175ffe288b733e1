"""Every check of a node: its id, what it reads, what is expected, how bad it is, and the cure.

`orch check --list` prints these entries, and the tables of the pages are made from them. Names are
ids: they stand in records and in ``--only``, and none of them changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.devices.vendor import any_tool
from orchestrator.feature import providers


@dataclass(frozen=True, slots=True)
class Entry:
    """A check: it fails unless ``must`` holds, and warns unless ``should`` does; without both it
    only informs. ``more``: the page or heading that says more.
    """

    name: str
    title: str
    reads: str
    must: str = ""
    should: str = ""
    cure: str = ""
    more: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the entry for JSON, its name as ``id``."""
        return {
            "id": self.name,
            "title": self.title,
            "reads": self.reads,
            "severity": self.severity,
            "must": self.must,
            "should": self.should,
            "cure": self.cure,
        }

    @property
    def severity(self) -> str:
        """``failure``, ``warning``, ``failure or warning``, or ``information``."""
        kinds = (("failure", self.must), ("warning", self.should))
        return " or ".join(kind for kind, text in kinds if text) or "information"


CATALOGUE = (
    Entry(
        "reach", "Reachable", "only on request: connection, login, `true`",
        must="the command exits with 0",
        cure="use another login shell for this user",
    ),
    Entry("runner", "Node runner", "the interpreter of the node runner, the kernel"),
    Entry(
        "framework", "Framework",
        "the framework's own interpreter and versions; the row carries the name of the framework",
        must="it can be imported in the environment of a run (`vars.setup`, `env`)",
        cure="install it, or set `vars.python`",
    ),
    Entry(
        "env", "Variables of the environment",
        "only if there is a finding: variables of the inventory",
        should="no `$NAME` in a variable whose name does not end in `PATH`: it is passed on as written",
        cure="export it in `vars.setup`",
    ),
    Entry(
        "vars", "Names of variables",
        "only if there is a finding: names of variables of the inventory",
        should="none is almost one that orch reads, such as `inteface`",
        cure="correct it",
    ),
    Entry(
        "held", "No other run",
        "whether a run occupies the node, from any work directory or user, and whose run it is",
        should="no other run has occupied it for a second or longer; a bench is refused before its"
        " first run, or waits with `--wait` (with `--wait 2h` at most that long)",
        cure="wait; `orch status`",
    ),
    Entry(
        "container", "Container",
        "only with `container:`: started once as a run would start it; its image, interpreter, NCCL"
        " library, devices",
        must="it starts, the work directory can be written to inside, as many GPUs as on the node,"
        " the image of the first node",
        should="InfiniBand devices inside, where the node has them",
        cure="read the engine's message; `docker pull`, `devices:`",
        more="containers.md",
    ),
    Entry(
        "leftovers", "Nothing left of earlier runs",
        "only if there are any: processes of earlier runs of this user; with `container:` containers"
        " with the label of an earlier run",
        must="no process, and no container that is running",
        should="no container that is not running",
        cure="`orch cancel`, or the engine's `rm -f`; a process in state D ends when what it waits for"
        " answers, or with a reboot",
    ),
    Entry(
        "disk", "Work directory",
        "free space in `vars.workdir`, and who may change the folders above it",
        must="writable, with 256 MiB and 1000 inodes free",
        should="no other user may rename a folder above it",
        cure="free some space, or use another disk; `chmod go-w` that folder",
    ),
    Entry(
        "shared", "Shared work directory",
        "whether nodes see one and the same directory as `vars.workdir`, as in a home on NFS; each"
        " node then has its own folder in it",
    ),
    Entry(
        "limits", "Limits of processes",
        "`memlock`, unless CAP_IPC_LOCK lifts it, `nofile`, `nproc` as a run gets them; for open"
        " files a run gets the hard limit; the processors that control groups leave",
        should="`memlock` is unlimited where InfiniBand is active; 4096 files and processes or more,"
        " and 2 processors for each GPU",
        cure="limits.conf, or the unit of sshd",
        more="preflight.md#in-a-pod",
    ),
    Entry(
        "shm", "Shared memory", "size of `/dev/shm`",
        should="1 GiB or more",
        cure="mount it larger; in containers `ipc:` or `shm_gib:`",
        more="preflight.md#in-a-pod",
    ),
    Entry(
        "login", "Time of a login", "seconds until the first command answers",
        should="under 2 s",
        cure="the shell's start-up files, `UseDNS`; with pods the API server, with `srun` slurmctld",
    ),
    Entry(
        "clock", "Clock", "the node's clock against the controller's",
        should="less than 5 s apart",
        cure="`timedatectl`",
    ),
    Entry(
        "port", "Ports", "the ports that a run would need",
        must="free",
        cure="stop the process that listens there",
    ),
    Entry(
        "data", "Data set", "`vars.data_dir`, and a digest of the data set",
        must="it is there (a bench checks this only if it measures a loader other than `synthetic`);"
        " if `orch dataset make` made it, the same as on the first node",
        should="it can be read; any other data set is the same too (a row of `alike`)",
        cure="copy one data set to all nodes",
        more="preflight.md#how-data-sets-are-compared",
    ),
    Entry(
        "program", "Third-party program", "the files that a framework names, by their digest",
        must="there, readable, and the same bytes as on the first node",
        cure="copy one version to all nodes; `chmod -R a+rX`",
    ),
    Entry(
        "slots", "CPU slots", "`slots:` of machines that run on CPUs",
        must="as many as a run needs",
        cure="`--gpus`, `slots:`",
    ),
    Entry(
        "gpus", "GPUs", "number, model, memory, driver",
        must=f"{any_tool()} answers in 10 s, without an error and without one in"
        " place of a value (`GPU requires reset`, `Unknown Error`, `ERR!`, `is lost`, a number below"
        " 0); enough GPUs, and an answer from every GPU that is attached",
        should="no such error in a value that orch does not read; no remark of nvidia-smi beside its"
        " answer, such as of a corrupted infoROM; one model",
        cure="the driver, a reset; `gpus:`",
    ),
    Entry(
        "idle", "Idle GPUs", "memory and utilization, processes and their users",
        should="no process is computing, at most 1 GiB and 10 % in use, and both are told",
        cure="wait, or exclude the node",
    ),
    Entry(
        "cuda", "CUDA", "CUDA versions of driver and framework",
        should="the framework needs no later major version",
        cure="a newer driver",
    ),
    Entry(
        "ecc", "ECC", "mode, uncorrected errors, pages and rows",
        must="no row that could not be remapped",
        should="no errors since the driver was loaded, no retirement or remapping pending, the same"
        " mode on all GPUs",
        cure="reset or replace the GPU",
    ),
    Entry(
        "xid", "Xid errors", "Xid errors of NVIDIA's driver in the kernel log",
        should="none but those that programs cause; the row says so if the log is not readable",
        cure="reset, restart, take the node out",
    ),
    Entry(
        "clocks", "Clocks and power",
        "what lowers the clocks now; power limit and application clocks against their defaults",
        should="nothing lowers them, and both are at their defaults",
        cure="cooling and power; `nvidia-smi -pl`, `-rac`",
    ),
    Entry(
        "modes", "Modes of GPUs", "compute mode, MIG, persistence; partitions of AMD GPUs",
        must="compute mode other than Prohibited",
        should="MIG disabled, compute partition SPX",
        cure="`nvidia-smi -c 0`, `-mig 0`",
    ),
    Entry(
        "pcie", "PCIe lanes of GPUs",
        "lanes in use and lanes possible; the generation is only shown, because an idle GPU lowers it",
        should="all lanes",
        cure="reseat the card or riser",
    ),
    Entry(
        "fabric", "NVSwitch fabric", "the state of an NVSwitch fabric",
        must="complete: CUDA would not start otherwise",
        should="healthy: full bandwidth, no route to recover",
        cure="nvidia-fabricmanager",
    ),
    Entry(
        "links", "NVLinks", "`nvidia-smi topo -m`",
        should="no pair of GPUs without the NVLinks that most pairs have",
        cure="`nvidia-smi nvlink --status`",
    ),
    Entry(
        "interface", "Interface of training traffic",
        "`vars.interface`: state, MTU, speed; without it the interface that is found, and why",
        must="it exists, and is up",
        should="without `vars.interface`: the other nodes are reached through one, or share a network",
        cure="`ip -brief link`, `vars.interface`",
        more="cluster.md#the-interface-of-training-traffic",
    ),
    Entry(
        "route", "Route",
        "the interface that leads to the master; on the master, to another node",
        must="a route, and none to the node itself (`localhost`, 127.x)",
        should="through `vars.interface`, unless that is InfiniBand",
        cure="addresses in the inventory",
    ),
    Entry(
        "hostname", "Own name", "what the node's own name resolves to",
        must="without an interface that Gloo can be told: an address other than 127.0.1.1 and the like",
        should="an address, and not only a loopback one",
        cure="`/etc/hosts`",
    ),
    Entry(
        "infiniband", "InfiniBand and RoCE",
        "ports: state, rate, InfiniBand or RoCE, GIDs, PKeys; those that NCCL_IB_HCA,"
        " NCCL_IB_GID_INDEX and NCCL_IB_PKEY of the inventory choose",
        should="one active that NCCL_IB_HCA leaves, none waits for a subnet manager, each state and"
        " rate is known, none is slower than the others, RoCE has a v2 GID, and the chosen GID is"
        " one and not link-local, all nodes are full members of one partition;"
        " `/dev/infiniband/uverbs*` for active ports",
        cure="cable, switch, `opensm`, an address, `modprobe ib_uverbs`",
        more="preflight.md#in-a-pod",
    ),
    Entry(
        "gdr", "GPUDirect RDMA",
        "on nodes with InfiniBand and NVIDIA GPUs: nvidia-peermem, or DMA-BUF (open driver, Linux"
        " 5.12)",
        should="one of them",
        cure="`modprobe nvidia-peermem`",
    ),
    Entry(
        "expect", "Expected values", "what the inventory expects of this host",
        must="each expectation is met, and its value is known",
        cure="repair the node, or correct `expect:`",
        more="preflight.md#expected-values",
    ),
    Entry(
        "load", "Load",
        "processors in use by others while the facts are collected, if that takes 0.2 s or more",
        should="less than a tenth of them",
        cure="`top`; wait, or exclude the node",
    ),
    Entry(
        "alike", "Nodes alike",
        "CPU, cores, memory (1 % apart is equal), kernel, GPUs, driver, ECC, MIG, power limit, links,"
        " InfiniBand, MTU, data set, versions of framework and libraries",
        should="no node differs from most others",
        cure="make the nodes equal, or `-x`",
    ),
)  # fmt: skip
"""The checks before a run, in the order of the table."""


def all_entries() -> list[Entry]:
    """Return all checks, those too that only ``orch check --audit`` makes."""
    audits = [entry for audit in providers("host_audit") for entry in audit.CATALOGUE]
    return [*CATALOGUE, *audits]


def table_rows(entries: tuple[Entry, ...], page: str) -> str:
    """Return entries as rows of the table of a page, in Markdown.

    >>> print(table_rows((Entry("clock", "Clock", "the time", should="right", cure="`date | cat`"),), ""))
    | `clock` | Clock: the time | W right | `date \\| cat` |
    """
    return "\n".join(_row(entry, page) for entry in entries)


def _row(entry: Entry, page: str) -> str:
    marks = (("**F** ", entry.must), ("W ", entry.should))
    expected = "; ".join(mark + text for mark, text in marks if text) or "–"
    more = entry.more.removeprefix(page) if entry.more.startswith(f"{page}#") else entry.more
    link = f" ([more]({more}))" if more else ""
    bar, escaped = "|", r"\|"
    cells = (f"`{entry.name}`", f"{entry.title}: {entry.reads}", expected, f"{entry.cure}{link}")
    return f"| {' | '.join(cell.replace(bar, escaped) for cell in cells)} |"
