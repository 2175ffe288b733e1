"""Samples of a run's GPUs from the NVIDIA driver, through its management library,
libnvidia-ml.so.1, without any other package.

Functions, structures and numbers are from nvml.h (NVML API Reference Manual). A driver may lack any
function, and a GPU may not support it: then that value is null, and it is not asked again.
nvidia-smi reads the same counters.
"""

import ctypes

from noderun.foreign import OwnProcesses
from noderun.processes import name_of, owners

LIBRARY = "libnvidia-ml.so.1"
MOST_GPUS = 16
UUID_BYTES = 96
CLOCK_SM, CLOCK_MEM = 1, 2
UNCORRECTED, CORRECTED, SINCE_DRIVER_LOADED = 1, 0, 0
XID = 8
LINK_ERRORS = (38, 45, 52, 59)
"""NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL: flits and data with a wrong checksum, replays,
recoveries.
"""
UNSIGNED = 1
"""NVML_VALUE_TYPE_UNSIGNED_INT, of four bytes; other counters have eight."""
FEW = 32
"""Processes of a GPU, and events of one look, that are read."""


ENERGY_SHARE = 0.0025
"""Of a core, for each GPU: a look at one counter takes 3.3 to 3.9 ms on an H200, so that each is
read every two seconds.
"""


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: shares of the last sample period, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t, as versions 2 and 3 of the function fill it."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class EventData(ctypes.Structure):
    """nvmlEventData_t; of an Xid, ``data`` is its number."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t. ``kind`` says which member of the union holds the value; counters are
    unsigned.
    """

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]


class Nvml:
    """The library. ``call`` returns False for unavailable functions and values."""

    def __init__(self, library):
        self.library = library
        self.missing = set()

    def call(self, name, *arguments):
        """Call a function; return True if it succeeded. A missing function is not looked up again."""
        if name in self.missing:
            return False
        try:
            function = getattr(self.library, name)
        except AttributeError:
            self.missing.add(name)
            return False
        return function(*arguments) == 0

    def number(self, device, name, *arguments, kind=ctypes.c_uint):
        """Return the number that a function writes through its last argument; None if it fails."""
        value = kind()
        return (
            value.value if self.call(name, device, *(arguments + (ctypes.byref(value),))) else None
        )

    def text(self, device, name):
        """Return a text of a device; empty if it fails."""
        buffer = ctypes.create_string_buffer(UUID_BYTES)
        return (
            buffer.value.decode("ascii", "replace")
            if self.call(name, device, buffer, UUID_BYTES)
            else ""
        )


class Gpu:
    """One device of the run. ``whole`` is the GPU, ``part`` what the run has of it: the same, or an
    instance of a GPU in MIG mode."""

    def __init__(self, nvml, whole, part):
        self.nvml, self.whole, self.part = nvml, whole, part
        self.works = set()
        self.failed = set()

    def ask(self, name, *arguments, kind=ctypes.c_uint):
        """Return a number of the GPU; None if it does not support it."""
        if (name, arguments) in self.failed:
            return None
        value = self.nvml.number(self.whole, name, *arguments, kind=kind)
        if value is not None:
            self.works.add((name, arguments))
        elif (name, arguments) not in self.works:
            self.failed.add((name, arguments))
        return value


def nvidia_sources(settings, describe, tell):
    """Return the sources for NVIDIA's GPUs: (source, least seconds, share of a core)."""
    devices = nvidia_devices(settings.get("devices", ""), describe)
    return devices and [
        (NvidiaPower(devices), 1.0, ENERGY_SHARE * len(devices)),
        (NvidiaStates(devices), 1.0, 0.0002),
        (NvidiaErrors(devices), 10.0, 0.0001),
        (NvidiaEvents(devices, tell), 1.0, 0.0001),
        (NvidiaProcesses(devices, settings, tell), 5.0, 0.0001),
    ]


def nvidia_devices(visible, describe, library=LIBRARY):
    """Return the GPUs that a run sees by CUDA_VISIBLE_DEVICES, in that order; none without a
    driver.

    ``describe`` is told ``gpus``: for each its name, UUID, power limit (W), largest clock (MHz),
    and whether it is an instance of a GPU whose power others share.
    """
    try:
        nvml = Nvml(ctypes.CDLL(library))
    except OSError:
        return []
    if not nvml.call("nvmlInit_v2"):
        return []
    handles = [by_index(nvml, index) for index in range(min(device_count(nvml), 64))]
    devices = []
    for word in [word.strip() for word in visible.split(",") if word.strip()][:MOST_GPUS]:
        whole = part = None
        if word.isdigit():
            whole = part = handles[int(word)] if int(word) < len(handles) else None
        elif word.startswith("MIG-"):
            part, whole = ctypes.c_void_p(), ctypes.c_void_p()
            if not nvml.call(
                "nvmlDeviceGetHandleByUUID", word.encode(), ctypes.byref(part)
            ) or not nvml.call(
                "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(whole)
            ):
                whole = None
        else:
            named = [
                handle
                for handle in handles
                if handle and nvml.text(handle, "nvmlDeviceGetUUID").startswith(word)
            ]
            whole = part = named[0] if len(named) == 1 else None
        if whole is None:
            return []  # columns that belong to another device are worse than none
        devices.append(Gpu(nvml, whole, part))
    describe({"gpus": [describe_gpu(device) for device in devices]})
    return devices


def device_count(nvml):
    """Return the number of GPUs that the driver shows this user."""
    count = ctypes.c_uint()
    return count.value if nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count)) else 0


def by_index(nvml, index):
    """Return the handle of a GPU by its number in nvidia-smi, which is by its place on the PCI bus;
    None if it is inaccessible."""
    handle = ctypes.c_void_p()
    return (
        handle
        if nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        else None
    )


def describe_gpu(device):
    """Return a device's part of the header."""
    limit_mw = device.ask("nvmlDeviceGetEnforcedPowerLimit")
    return {
        "name": device.nvml.text(device.whole, "nvmlDeviceGetName"),
        "uuid": device.nvml.text(device.part, "nvmlDeviceGetUUID"),
        "limit_w": None if limit_mw is None else limit_mw / 1e3,
        "most_mhz": device.ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
        "shared": device.part is not device.whole,
    }


class OfEachGpu:
    """A source that reads each GPU: the columns ``gpu<place>.<word>`` for each of its words."""

    WORDS = ()  # type: tuple[str, ...]

    def __init__(self, devices):
        self.devices = devices
        self.columns = [
            "gpu%d.%s" % (place, word) for place in range(len(devices)) for word in self.WORDS
        ]

    def read(self, now):
        """Return the values of all GPUs."""
        return [value for device in self.devices for value in self.of(device)]

    def of(self, device):
        """Return the values of one GPU."""
        raise NotImplementedError


class NvidiaPower(OfEachGpu):
    """Energy of each GPU: joules since the driver was loaded, or watts if it does not count joules.

    Watts are the mean of the last second on Ampere and later, except GA100.
    """

    WORDS = ("energy_j", "power_w")

    def of(self, device):
        """Return the values of one GPU."""
        energy_mj = device.ask("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        power_mw = device.ask("nvmlDeviceGetPowerUsage") if energy_mj is None else None
        return [
            None if energy_mj is None else energy_mj / 1e3,
            None if power_mw is None else power_mw / 1e3,
        ]


class NvidiaStates(OfEachGpu):
    """Of each GPU: percent of the time in which any kernel ran, MHz of its multiprocessors and its
    memory, degrees Celsius, bytes in use, and why clocks are lowered, as the bits of
    nvmlClocksEventReasons."""

    WORDS = ("used_percent", "sm_mhz", "memory_mhz", "celsius", "memory_bytes", "reasons")

    def of(self, device):
        """Return the values of one GPU."""
        rates, memory = Utilization(), Memory()
        has_rates = device.nvml.call(
            "nvmlDeviceGetUtilizationRates", device.part, ctypes.byref(rates)
        )
        has_memory = device.nvml.call("nvmlDeviceGetMemoryInfo", device.part, ctypes.byref(memory))
        reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons", kind=ctypes.c_ulonglong)
        if reasons is None:  # drivers before 535
            reasons = device.ask(
                "nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong
            )
        return [
            rates.gpu if has_rates else None,
            device.ask("nvmlDeviceGetClockInfo", CLOCK_SM),
            device.ask("nvmlDeviceGetClockInfo", CLOCK_MEM),
            device.ask("nvmlDeviceGetTemperature", 0),
            memory.used if has_memory else None,
            reasons,
        ]


class NvidiaErrors(OfEachGpu):
    """Of each GPU: errors of its memory since the driver was loaded, those that were corrected and
    those that were not, replays of PCIe, and errors of NVLink."""

    WORDS = ("ecc_corrected", "ecc_uncorrected", "pcie_replays", "nvlink_errors")

    def of(self, device):
        """Return the counts of one GPU."""
        kinds = (CORRECTED, UNCORRECTED)
        name = "nvmlDeviceGetTotalEccErrors"
        counts = [
            device.ask(name, kind, SINCE_DRIVER_LOADED, kind=ctypes.c_ulonglong) for kind in kinds
        ]
        return [*counts, device.ask("nvmlDeviceGetPcieReplayCounter"), link_errors(device)]


def link_errors(device):
    """Return the errors of all NVLinks of a GPU; None if it has none, or does not count."""
    if "nvlink" in device.failed:
        return None
    fields = (FieldValue * len(LINK_ERRORS))()
    for field, number in zip(fields, LINK_ERRORS):
        field.field = number
    called = device.nvml.call("nvmlDeviceGetFieldValues", device.whole, len(fields), fields)
    counts = [
        field.value & (0xFFFFFFFF if field.kind == UNSIGNED else ~0)
        for field in fields
        if called and field.code == 0
    ]
    if not counts:
        device.failed.add("nvlink")
        return None
    return sum(counts)


class NvidiaEvents:
    """Xid errors, with which the driver reports that something is wrong with a GPU, as they come."""

    columns = ()

    def __init__(self, devices, tell):
        self.devices, self.tell = devices, tell
        self.set = ctypes.c_void_p()
        self.registered = False
        if devices and devices[0].nvml.call("nvmlEventSetCreate", ctypes.byref(self.set)):
            for device in devices:
                if device.nvml.call(
                    "nvmlDeviceRegisterEvents", device.whole, ctypes.c_ulonglong(XID), self.set
                ):
                    self.registered = True

    def read(self, now):
        """Tell of the events since the last look, without waiting for any."""
        for _ in range(FEW if self.registered else 0):
            event = EventData()
            if not self.devices[0].nvml.call(
                "nvmlEventSetWait_v2", self.set, ctypes.byref(event), ctypes.c_uint(0)
            ):
                break
            places = [
                place
                for place, device in enumerate(self.devices)
                if device.whole.value == event.device
            ]
            if event.kind == XID:
                self.tell(event="xid", gpu=places[0] if places else None, code=event.data)
        return []


class NvidiaProcesses:
    """Processes on the GPUs of the run that are not of the run, each told once."""

    columns = ()

    def __init__(self, devices, settings, tell):
        self.devices, self.tell = devices, tell
        self.run = OwnProcesses(settings)
        self.told = set()

    def read(self, now):
        """Look at the processes of all GPUs."""
        for place, device in enumerate(self.devices):
            infos = (ProcessInfo * FEW)()
            for name in (
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses_v2",
            ):
                count = ctypes.c_uint(FEW)
                if device.nvml.call(name, device.part, ctypes.byref(count), infos):
                    for info in infos[: min(FEW, count.value)]:
                        self.look_at(place, info.pid)
                    break
        return []

    def look_at(self, place, pid):
        """Tell of a process on a GPU, once."""
        if (place, pid) not in self.told and len(self.told) < FEW and not self.run.has(pid):
            self.told.add((place, pid))
            if name_of(pid).startswith("nvidia-cuda-mps"):
                return  # through which processes of the run may share a GPU
            self.tell(
                event="process",
                gpu=place,
                pid=pid,
                name=name_of(pid),
                user=owners([str(pid)]).get(str(pid), ""),
            )
