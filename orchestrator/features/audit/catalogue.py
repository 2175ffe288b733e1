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
        "NVIDIA's driver, the container toolkit, the CUDA toolkit, DCGM, runc, containerd, docker, firmware of"
        " ConnectX and BlueField",
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
    Entry(
        "kernel", "Kernel that runs", "the running kernel, and those of /boot of its flavour",
        should="the newest that is installed", cure="restart the node",
    ),
    Entry(
        "flaws", "Flaws of processors", "/sys/devices/system/cpu/vulnerabilities",
        should="none that the kernel calls vulnerable: another tenant may read what this one computes",
        cure="microcode and a kernel with the mitigation; no `mitigations=off` on nodes of several tenants",
    ),
    Entry(
        "nested", "Virtual machines in one", "in a virtual machine: whether this user may open /dev/kvm",
        should="not: flaws of KVM are then in a tenant's reach",
        cure="`options kvm_intel nested=0` (`kvm_amd`) on the hypervisor, or no such device in the guest",
    ),
    Entry(
        "management", "Management controllers",
        "devices of a BMC or DPU that this user may open: /dev/ipmi*, /dev/rshim*",
        should="none: firmware and console of the machine are behind them",
        cure="no kcs interface for the host in the BMC; `mlxprivhost … r --disable_rshim`; root alone opens them",
    ),
    Entry(
        "strangers", "Processes of others", "processes of other people (accounts from 1000 on) in /proc",
        should="none are seen: command lines have names, paths and secrets",
        cure="`hidepid=invisible` of /proc; in Slurm also `ExclusiveUser=YES`; no `hostPID` for pods",
    ),
    Entry(
        "slurm_private", "Jobs of others", "`PrivateData` of `scontrol show config`",
        should="jobs, usage, users", cure="`PrivateData=jobs,usage,users` in slurm.conf",
    ),
    Entry(
        "slurm_confined", "Confined jobs", "TaskPlugin, ProctrackType and Constrain… of `scontrol show config`",
        should="`task/cgroup`, `proctrack/cgroup`, and `yes` for devices, cores and memory: else a job uses"
        " GPUs, cores and memory of others",
        cure="slurm.conf, and `ConstrainDevices=yes` … in cgroup.conf",
    ),
    Entry(
        "slurm_logins", "Logins beside jobs", "on nodes of Slurm: /etc/pam.d/sshd",
        should="pam_slurm_adopt: whoever has no job on a node cannot log in, and logins belong to a job",
        cure="`account required pam_slurm_adopt.so` in /etc/pam.d/sshd, `PrologFlags=contain`",
    ),
    Entry(
        "slurm_between", "Between two jobs", "HealthCheckProgram, Prolog and Epilog of `scontrol show config`",
        should="one of them: something looks at a node, and clears it, before the next tenant",
        cure="`HealthCheckProgram` with `HealthCheckInterval`, `Epilog` in slurm.conf",
    ),
    Entry(
        "pod_token", "Token in a pod", "on pods: whether a token of a service account is mounted",
        should="none: whatever runs here has its rights", cure="`automountServiceAccountToken: false`",
    ),
    Entry(
        "pod_rights", "Rights beyond a namespace", "what `kubectl auth can-i` tells of this login: secrets and"
        " pods of other namespaces, nodes/proxy, cluster roles, impersonation",
        should="none of them, unless the cluster is the tenant's own",
        cure="RoleBindings of a namespace in place of ClusterRoleBindings",
    ),
    Entry(
        "pod_admission", "Admission of pods", "labels of the namespace, and what its pods have: privileged,"
        " hostPID, hostPath",
        should="`pod-security.kubernetes.io/enforce` is baseline or restricted, or no pod of it has these",
        cure="`kubectl label namespace … pod-security.kubernetes.io/enforce=baseline`, where tenants share nodes",
    ),
    Entry(
        "pod_network", "Network of pods", "NetworkPolicies of the namespace",
        should="one: without any, every pod of the cluster may connect",
        cure="a NetworkPolicy that lets in what is in the namespace",
    ),
)  # fmt: skip
