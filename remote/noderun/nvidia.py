"""NVIDIA's GPUs: a row of `vendors.VENDORS`."""

import os

from noderun.sysfs import names_in


class Nvidia:
    """nvidia-smi, and files of its driver."""

    name = "nvidia"
    reports = {"smi": ["nvidia-smi", "-q", "-x"], "topology": ["nvidia-smi", "topo", "-m"]}
    instead = {}  # type: dict[str, list[str]]
    listings = ("smi",)
    pid = r"<pid>\s*(\d+)"
    texts = {"driver": "/proc/driver/nvidia/version"}
    log_word = "NVRM: "
    peer_modules = ("nvidia_peermem", "nv_peer_mem")
    driver = "/proc/driver/nvidia/version"
    opened = ("/dev/nvidia",)
    devices = "/dev/nvidia[0-9]*"
    by_uuid = "CUDA_VISIBLE_DEVICES"

    @staticmethod
    def numbered_gpus(root):
        """Return [PCI address, UUID] of every GPU, by address. MIG instances have UUIDs that are
        not among these.
        """
        base = os.path.join(root, "proc/driver/nvidia/gpus")
        gpus = []
        for address in sorted(names_in(base)):
            with open(os.path.join(base, address, "information"), errors="replace") as file:
                words = dict(line.split(":", 1) for line in file if ":" in line)
            gpus.append([address, words.get("GPU UUID", "").strip()])
        return gpus

    @staticmethod
    def serials(root, gpus, text):
        """Return {UUID: serial number} as nvidia-smi tells them."""
        import re

        pairs = re.findall(r"(?s)<serial>([^<]+)</serial>.*?<uuid>([^<]+)</uuid>", text)
        return {uuid: serial for serial, uuid in pairs}
