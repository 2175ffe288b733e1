"""AMD's GPUs: a row of `vendors.VENDORS`."""

import os

from noderun.sysfs import first_line, names_in


class Amd:
    """amd-smi or else rocm-smi, and files of the driver amdgpu."""

    name = "amd"
    reports = {
        "amd_static": ["amd-smi", "static", "--json"],
        "amd_metric": ["amd-smi", "metric", "--json"],
        "amd_process": ["amd-smi", "process", "--json"],
    }
    instead = {
        "rocm": [
            "rocm-smi", "--showproductname", "--showuniqueid", "--showbus", "--showvbios", "--showdriverversion", "--showuse",
            "--showmeminfo", "vram", "--showmaxpower", "--showclocks", "--showpids", "--json",
        ]
    }  # fmt: skip
    listings = ("amd_process", "rocm")
    pid = r'(?:"pid": |"PID)(\d+)'
    texts = {}  # type: dict[str, str]
    log_word = ""
    peer_modules = ()  # type: tuple[str, ...]
    driver = "/sys/module/amdgpu/version"
    opened = ("/dev/kfd", "/dev/dri/")
    devices = "/dev/dri/renderD*"
    by_uuid = "ROCR_VISIBLE_DEVICES"

    @staticmethod
    def numbered_gpus(root):
        """Return [PCI address, UUID] of every GPU, by its node in the driver's topology."""
        base = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
        gpus = []
        for number in sorted(map(int, filter(str.isdigit, names_in(base)))):
            try:
                with open(os.path.join(base, str(number), "properties")) as file:
                    lines = [line.split() for line in file]
            except OSError:  # of a GPU that this user, or a container, may not use
                continue
            values = {words[0]: int(words[1]) for words in lines if len(words) == 2}
            if values.get("simd_count"):
                place = values.get("location_id", 0)
                bus, device, function = place >> 8 & 255, place >> 3 & 31, place & 7
                address = "%04x:%02x:%02x.%d" % (values.get("domain", 0), bus, device, function)
                gpus.append([address, "GPU-%016x" % values.get("unique_id", 0)])
        return gpus

    @staticmethod
    def serials(root, gpus, text):
        """Return {UUID: serial number} by amdgpu's files, which only cards of servers have."""
        folder = os.path.join(root, "sys/bus/pci/devices")
        return {uuid: first_line(folder, address, "serial_number") for address, uuid in gpus}
