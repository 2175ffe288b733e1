"""The numbers of a language model besides its tokens/s: per device, in operations, and as shares of
the device's peak.

All of them follow from one speed, so they are as certain as it is. What counts as an operation is
in
`orchestrator.plan.transformer`, the peaks are in `orchestrator.results.numbers.peaks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.devices.vendor import Device
from orchestrator.notes import Note
from orchestrator.plan import MEASURES, RunSpec
from orchestrator.plan.measures import LANGUAGE_MODEL
from orchestrator.plan.transformer import Transformer
from orchestrator.results.notes import NO_PEAK, PARALLEL_LAYOUT, PEAK
from orchestrator.results.numbers.notes import ABOVE_PEAK
from orchestrator.results.numbers.peaks import devices_in
from orchestrator.results.numbers.physics import ROOM
from orchestrator.results.values import Value

_PARTITIONS = {"DPX", "TPX", "QPX", "CPX"}
_PARTS = {"MIG", *_PARTITIONS}

METRICS = (*MEASURES[LANGUAGE_MODEL].derived, *MEASURES[LANGUAGE_MODEL].reported)


def language_values(
    spec: RunSpec,
    transformer: Transformer | None,
    samples_per_s: float,
    observed: Mapping[str, Any],
    resolution: float = 0.0,
) -> tuple[Value, ...]:
    """Return the values of `METRICS` in a run, except those that need an unknown size, peak or
    memory.

    ``resolution`` is the resolution of ``samples_per_s``, as its log prints numbers, 0 if unknown.
    """
    per_device = samples_per_s * spec.items / spec.world_size
    numbers = {"tokens_per_s_per_device": per_device}
    if transformer:
        flops = transformer.flops_per_token(spec.step.tokens)
        numbers["tflops_per_device"] = per_device * flops / 1e12
        device = device_of(observed)
        if device and (peak := device.peak(spec.dtype)):
            executed = transformer.hardware_flops_per_token(
                spec.step.tokens, spec.step.recomputation
            )
            causal = transformer.flops_per_token(spec.step.tokens, causal=True)
            shares = {"mfu": flops, "mfu_causal": causal, "hfu": executed}
            numbers |= {
                name: 100 * per_device * operations / peak for name, operations in shares.items()
            }
    values = {
        name: Value(name, (), number, number * resolution / samples_per_s)
        for name, number in numbers.items()
    }
    memory = observed.get("max_memory_bytes")
    if type(memory) is int and 0 < memory < 1 << 60:
        values["peak_memory"] = Value("peak_memory", (), memory / 2**30)
    return tuple(values[metric.name] for metric in METRICS if metric.name in values)


def peak_note(
    spec: RunSpec, observed: Mapping[str, Any], values: Sequence[Value] = ()
) -> list[Note]:
    """Return a note that there is no MFU because no peak of the device is known, or the peak that
    the MFU is a share of. If one of the ``values``, `mfu_causal`, is more than there can be, that
    is a note too."""
    device = device_of(observed)
    if device and (peak := device.peak(spec.dtype)):
        least = [
            value.number
            for value in values
            if value.metric == "mfu_causal" and value.number > 100 * ROOM
        ]
        of_device = {"device": device.name, "dtype": spec.dtype}
        beyond = [ABOVE_PEAK(share=share, **of_device) for share in least]
        return [*beyond, PEAK(tflops=peak / 1e12, **of_device)]
    name = " and ".join(_names(observed)) or "the device"
    return [NO_PEAK(device=name, dtype=spec.dtype)]


def layout_note(spec: RunSpec, observed: Mapping[str, Any]) -> list[Note]:
    """Return a note of how data-parallel ranks held the model, if the program chose it
    (``parallel=auto``).
    """
    kind = observed.get("parallel")
    if spec.options.get("parallel") == "auto" and kind in ("ddp", "fsdp"):
        return [PARALLEL_LAYOUT(layout=kind)]
    return []


def device_of(observed: Mapping[str, Any]) -> Device | None:
    """Return the device of all ranks; None if they have several, or it is not known, as the share
    of a GPU that a MIG instance has (``NVIDIA A100-SXM4-80GB MIG 1g.10gb``) or a partition of AMD's
    (``AMD Instinct MI300X CPX``)."""
    devices = {
        device.name: device for name in _names(observed) for device in devices_in(name).values()
    }
    known = [
        name for name in _names(observed) if devices_in(name) and not _PARTS & set(name.split())
    ]
    if len(devices) == 1 and known == _names(observed):
        return next(iter(devices.values()))
    return None


def with_devices(observed: Mapping[str, Any], gpus: Iterable[str]) -> Mapping[str, Any]:
    """Return a program's report, with the names of its nodes' ``gpus`` if needed.

    They are needed if the program does not name its devices, or if these are partitions, to which
    HIP gives the name of the whole GPU.
    """
    names = list(gpus)
    is_told = "devices" in observed and not any(_PARTITIONS & set(name.split()) for name in names)
    if is_told:
        return observed
    return {**observed, "devices": [{"name": name} for name in names]}


def _names(observed: Mapping[str, Any]) -> list[str]:
    """Return the names of the devices that the program reports."""
    entries = observed.get("devices")
    names = []
    if isinstance(entries, list):
        names = [entry.get("name") for entry in entries if isinstance(entry, Mapping)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))
