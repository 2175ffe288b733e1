"""Samples of a run's GPUs from the driver amdgpu in sysfs: files of /sys/class/drm/card*/device and
its hwmon folder, as Documentation/gpu/amdgpu of the kernel describes them.
"""

import glob
import os

from noderun.files import read_slice
from noderun.sysfs import first_line

AMD_VENDOR = "0x1002"


def amd_paths(base="/sys/class/drm"):
    """Return the folders of AMD's GPUs, in order of their places on the PCI bus, in which ROCm
    numbers them.
    """
    cards = glob.glob(os.path.join(base, "card[0-9]*", "device"))
    paths = {os.path.realpath(path) for path in cards if first_line(path, "vendor") == AMD_VENDOR}
    return sorted(path for path in paths if glob.glob(os.path.join(path, "hwmon", "hwmon*")))


def whole(*path):
    """Return a whole number of sysfs; None if there is none."""
    words = first_line(*path)
    return int(words) if words.lstrip("-").isdigit() else None


def amd_sources(settings, describe, tell):
    """Return the sources for AMD's GPUs: (source, least seconds, share of a core)."""
    return [(AmdGpus(settings.get("devices", ""), describe), 1.0, 0.0008)]


class AmdGpus:
    """The columns of `nvml.NvidiaPower` and `nvml.NvidiaStates`, as far as sysfs has them: no
    energy and no reasons for lowered clocks."""

    WORDS = (
        "power_w",
        "used_percent",
        "sm_mhz",
        "memory_mhz",
        "celsius",
        "memory_bytes",
        "ecc_corrected",
        "ecc_uncorrected",
    )

    def __init__(self, visible, describe, base="/sys/class/drm"):
        paths = amd_paths(base)
        numbers = [word.strip() for word in visible.split(",")]
        chosen = [paths[int(word)] for word in numbers if word.isdigit() and int(word) < len(paths)]
        self.paths = chosen if len(chosen) == len(numbers) else []
        self.monitors = [
            sorted(glob.glob(os.path.join(path, "hwmon", "hwmon*")))[0] for path in self.paths
        ]
        self.columns = [
            "gpu%d.%s" % (place, word) for place in range(len(self.paths)) for word in self.WORDS
        ]
        if self.paths:
            describe({"gpus": [self.about(*gpu) for gpu in zip(self.paths, self.monitors)]})

    def about(self, path, monitor):
        """Return a GPU's part of the header."""
        limit_uw = whole(monitor, "power1_cap")
        clocks = [
            int(line.split()[1].lower().replace("mhz", "")) for line in levels(path, "pp_dpm_sclk")
        ]
        name = first_line(path, "product_name") or "AMD " + first_line(path, "device")
        return {
            "name": name,
            "uuid": first_line(path, "unique_id"),
            "limit_w": None if limit_uw is None else limit_uw / 1e6,
            "most_mhz": max(clocks) if clocks else None,
            "shared": False,
        }

    def read(self, now):
        """Return the values of all GPUs."""
        return [value for gpu in zip(self.paths, self.monitors) for value in self.of(*gpu)]

    def of(self, path, monitor):
        """Return the values of one GPU."""
        power_uw = whole(monitor, "power1_average")
        if power_uw is None:
            power_uw = whole(monitor, "power1_input")  # where only the momentary power is known
        celsius = whole(monitor, "temp2_input")  # the hottest spot, which decides about the clocks
        if celsius is None:
            celsius = whole(monitor, "temp1_input")
        errors = dict(
            line.split(":")
            for line in read_slice(os.path.join(path, "ras", "umc_err_count"), 0, 256)
            .decode()
            .splitlines()
        )
        return [
            None if power_uw is None else power_uw / 1e6,
            whole(path, "gpu_busy_percent"),
            active_mhz(path, "pp_dpm_sclk"),
            active_mhz(path, "pp_dpm_mclk"),
            None if celsius is None else celsius / 1e3,
            whole(path, "mem_info_vram_used"),
            int(errors["ce"]) if "ce" in errors else None,
            int(errors["ue"]) if "ue" in errors else None,
        ]


def levels(path, name):
    """Return the lines of a table of clocks: ``1: 1700Mhz *`` is the level in use."""
    text = read_slice(os.path.join(path, name), 0, 4096).decode("ascii", "replace")
    return [
        line
        for line in text.splitlines()
        if len(line.split()) > 1 and line.split()[1].lower().endswith("mhz")
    ]


def active_mhz(path, name):
    """Return the clock in use; None if it is not known."""
    active = [line for line in levels(path, name) if line.rstrip().endswith("*")]
    return int(active[0].split()[1].lower().replace("mhz", "")) if active else None
