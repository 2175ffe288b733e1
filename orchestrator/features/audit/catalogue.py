"""The checks of an audit, as `orch check --list` shows them."""

from __future__ import annotations

from orchestrator.checks.catalogue import Entry

CATALOGUE = (
    Entry(
        "acs", "PCIe access control",
        "the ACS control bits of the bridges above GPUs and fast network cards, which only root may read",
        should="no redirection (ReqRedir, CmpltRedir, EgressCtrl): with it, data between two devices"
        " below one switch goes up to the processor and back",
        cure="`setpci -s BRIDGE ECAP_ACS+0x6.w=0000` at each boot, or off in the BIOS; in a virtual"
        " machine leave it on, and enable ATS",
    ),
    Entry(
        "iommu", "IOMMU",
        "the IOMMU groups of GPUs and fast network cards, their domain, the kernel's command line",
        should="off, or pass-through (`identity`): otherwise every transfer is translated",
        cure="`iommu=pt` on the kernel's command line (`iommu.passthrough=1` on Arm), and restart",
    ),
    Entry(
        "pcie_link", "PCIe links",
        "speed and lanes of each GPU and fast network card in use, against those of the card itself: a"
        " driver's tool, which `pcie` asks, counts what the slot cannot as not possible",
        should="its own maximum; GPUs that are all at 2.5 or 5 GT/s only save power",
        cure="reseat the card or riser, or move it to a faster slot; set the speed of the slot in the"
        " BIOS; `lspci -vv` compares LnkSta with LnkCap",
    ),
    Entry(
        "governor", "Frequency governor", "the governor of each processor, where the kernel sets it",
        should="`performance`, or that preference (EPP)",
        cure="`cpupower frequency-set -g performance`",
    ),
    Entry(
        "cstates", "Deep idle states",
        "the idle states that processors may enter, and the time that they need to leave them",
        should="at most 50 µs",
        cure="`cpupower idle-set -D 50`",
    ),
    Entry(
        "numa_balancing", "NUMA balancing", "`kernel.numa_balancing`, on nodes with several",
        should="0: the kernel moves pages of bound processes about",
        cure="`sysctl -w kernel.numa_balancing=0`, and in /etc/sysctl.d",
    ),
    Entry(
        "huge_pages", "Transparent huge pages", "`enabled` and `defrag` of transparent_hugepage",
        should="`always` or `madvise`; `defrag` is not `always`, which stalls allocations",
        cure="`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, or `…/defrag`",
    ),
    Entry(
        "gdrcopy", "GDRCopy", "on nodes with NVIDIA GPUs and InfiniBand: the module gdrdrv",
        should="loaded: NVSHMEM, UCX and NCCL copy small messages with it",
        cure="install gdrcopy, `modprobe gdrdrv`",
    ),
    Entry(
        "ncu", "Rights of ncu", "RmProfilingAdminOnly of NVIDIA's driver, and the login user",
        should="0, or the user is root: else ncu ends with ERR_NVGPUCTRPERM",
        cure="`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, and restart",
    ),
    Entry(
        "perf", "Rights of perf", "`kernel.perf_event_paranoid`, and the login user",
        should="2 or less, or the user is root: else perf and nsys cannot sample processors",
        cure="`sysctl -w kernel.perf_event_paranoid=2`, and in /etc/sysctl.d",
    ),
    Entry(
        "advisories", "Minimum versions",
        "NVIDIA's driver, the container toolkit, runc, containerd, firmware of ConnectX and BlueField",
        should="a version that no advisory of the list names",
        cure="the version that the row names; a distribution may have mended the old one, as its"
        " changelog says",
        more="audit.md#advisories",
    ),
    Entry(
        "nccl_env", "Variables of NCCL",
        "NCCL_* of the inventory, of a login, of /etc/nccl.conf and ~/.nccl.conf",
        must="an interface for NCCL_SOCKET_IFNAME: NCCL does not start without one",
        should="names that NCCL knows; nothing left of debugging; devices for NCCL_IB_HCA; a way to"
        " the other nodes by NCCL_SOCKET_IFNAME; NCCL_TOPO_FILE exists: NCCL says nothing if not",
        cure="correct or remove the variable; NCCL finds all of this by itself",
        more="audit.md#variables-of-nccl",
    ),
)  # fmt: skip
