"""The facts of a machine's GPUs, whichever program told them: stored once for all GPUs, read per
GPU, or for some GPUs only.

``gpus`` of the facts has an entry for each GPU with what may differ at any moment, ``gpu`` all
other values by name: a single value if all GPUs of the machine have the same, else a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_PROCESSES = 32
UNKNOWN_GPU = "?"
"""The ``gpu`` of a process that computes on some GPU, but on which is not known."""
_UNSUPPORTED = re.compile(
    r"|n/a|none|not (?:supported|available|active|applicable)(?: .*)?|no data|insufficient permissions?"
    r"|(?:no permission|permission denied).*|function not found|requested functionality has been deprecated",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"(?:.* )?requires? (?:a )?reset|(?:.* )?(?:reset|reboot|drain .*) required|.*\bis lost\b.*|.*fallen off the bus.*"
    r"|insufficient external power|corrupted inforom",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"unknown error|err!?|error\b.*|driver not loaded|uninitialized|timeout|timed out|interrupt request issue"
    r"|(?:nvml|amdsmi|rsmi|rocm)_\w+|(?:unable|failed) to .*|not responding|not ready",
    re.IGNORECASE,
)
_MOST_NAMED = 3


def columns(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of all entries by name: one value if all are equal, else a list. Names
    without a value are left out.
    """
    columns: dict[str, Any] = {}
    for name in entries[0] if entries else ():
        values = [entry[name] for entry in entries]
        if any(value is not None for value in values):
            columns[name] = values[0] if all(value == values[0] for value in values) else values
    return columns


def gpu_states(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each GPU of a machine with all its values; empty if the facts have no
    GPUs.
    """
    gpus, columns = facts.get("gpus"), facts.get("gpu")
    if not isinstance(gpus, (list, tuple)) or not all(isinstance(gpu, Mapping) for gpu in gpus):
        return []
    states = [{"index": str(at), **gpu} for at, gpu in enumerate(gpus)]
    for name, values in columns.items() if isinstance(columns, Mapping) else ():
        per_gpu = values if isinstance(values, (list, tuple)) else [values] * len(states)
        for state, value in zip(states, per_gpu, strict=False):
            if value is not None:
                state[str(name)] = value
    return states


def is_unsupported(text: str) -> bool:
    """Return True for a text that says that a GPU or its driver does not have this value: that is
    no fault.

    >>> is_unsupported("[N/A]"), is_unsupported("Unknown Error")
    (True, False)
    """
    return bool(_UNSUPPORTED.fullmatch(_bare(text)))


def is_lost(text: str) -> bool:
    """Return True for an answer after which nothing works on a GPU, wherever it stands: the strings
    of nvmlErrorString.

    >>> is_lost("GPU requires reset"), is_lost("[GPU is lost]"), is_lost("Unknown Error")
    (True, True, False)
    """
    return bool(_LOST.fullmatch(_bare(text)))


def complaints(answers: Iterable[tuple[str, str]], read: Iterable[str]) -> dict[str, str | None]:
    """Return a GPU's faults by the error texts that a tool printed in place of values, as (path,
    text).

    ``broken``: the GPU answers nothing else after this text, or it is an error in one of the parts
    that orch reads (``read``). ``silent``: an error anywhere else. Each names the first paths; None
    if there is no such error.
    """
    parts = set(read)
    broken: dict[str, list[str]] = {}
    silent: dict[str, list[str]] = {}
    for path, text in answers:
        is_read = path.partition(".")[0] in parts
        is_error = (
            bool(_ERROR.fullmatch(_bare(text))) or is_read and _bare(text).casefold() == "unknown"
        )
        if is_lost(text) or is_error and is_read:
            broken.setdefault(_bare(text), []).append(path)
        elif is_error:
            silent.setdefault(_bare(text), []).append(path)
    return {"broken": _words(broken), "silent": _words(silent)}


def _bare(text: str) -> str:
    return text.strip().removeprefix("[").removesuffix("]").strip()


def _words(paths: Mapping[str, Sequence[str]]) -> str | None:
    texts = []
    for text, names in paths.items():
        rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        texts.append(f"{text[:60]} ({', '.join(names[:_MOST_NAMED])}{rest})")
    return "; ".join(texts) or None


def is_partition(mode: str) -> bool:
    """Return True if a device is a part of an AMD GPU by its compute partition mode."""
    return mode[:3] in ("DPX", "TPX", "QPX", "CPX")


def without_places(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine's facts without what depends on where its GPUs are in it: processors and
    network cards near them.

    The nodes of a lab are one machine whose GPUs are divided among them, so it differs between them
    and says nothing of them.
    """
    matrix = facts.get("topology")
    if not isinstance(matrix, Mapping):
        return dict(facts)
    count = len(matrix["links"])
    links = {name: " ".join(row.split()[:count]) for name, row in matrix["links"].items()}
    return {
        **facts,
        "topology": {
            "devices": matrix["devices"][:count],
            "links": links,
            "nics": {},
            "cpus": [],
            "numa": [],
        },
    }


def _rows(matrix: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    """Return a `nvidia_smi.topology` of only the GPUs at these places, with the numbers that
    programs then see.
    """
    names = {
        f"GPU{place}": f"GPU{at}"
        for at, place in enumerate(places)
        if f"GPU{place}" in matrix["links"]
    }
    columns = [*names, *(device for device in matrix["devices"] if device not in matrix["links"])]
    cells = {
        name: dict(zip(matrix["devices"], matrix["links"][name].split(), strict=False))
        for name in names
    }
    order = list(matrix["links"])
    near = {}
    for key in ("cpus", "numa"):
        if len(matrix[key]) == len(order):
            near[key] = [matrix[key][order.index(name)] for name in names]
    links = {}
    for name, row in cells.items():
        links[names[name]] = " ".join(row.get(column, "") for column in columns)
    return {
        **matrix,
        "devices": [names.get(column, column) for column in columns],
        "links": links,
        **near,
    }


def select_gpus(facts: Mapping[str, Any], devices: str) -> dict[str, Any]:
    """Return a machine's facts with only the GPUs that ``devices`` lists in the format of
    CUDA_VISIBLE_DEVICES, by index or by the start of their UUID. A MIG instance (``MIG-…``) is in
    no list of GPUs: with one of these the facts of all GPUs stay, and
    ``instances`` is the number of listed devices.

    >>> facts = {"gpus": [{"index": "0"}, {"index": "1"}], "gpu": {"uuid": ["GPU-a", "GPU-b"], "ecc": "Enabled"}}
    >>> select_gpus(facts, "GPU-b")
    {'gpus': [{'index': '1'}], 'gpu': {'uuid': ['GPU-b'], 'ecc': 'Enabled'}, 'devices': 'GPU-b'}
    """
    states, names = gpu_states(facts), [name.strip() for name in devices.split(",") if name.strip()]
    if not states:
        return dict(facts)
    if any(name.startswith("MIG-") for name in names):
        return {**facts, "devices": devices, "instances": len(names)}

    def places(name: str) -> list[int]:
        if name.isdigit():
            return [int(name)] if int(name) < len(states) else []
        return [
            at for at, state in enumerate(states) if str(state.get("uuid", "")).startswith(name)
        ]

    kept = list(dict.fromkeys(place for name in names for place in places(name)))
    indexes = {str(place) for place in kept}
    columns = facts.get("gpu")
    result = {**facts, "gpus": [facts["gpus"][place] for place in kept], "devices": devices}
    if isinstance(columns, Mapping):
        # A value that all GPUs share is not in a list.
        result["gpu"] = {
            name: [values[place] for place in kept] if isinstance(values, (list, tuple)) else values
            for name, values in columns.items()
        }
    if isinstance(processes := facts.get("gpu_processes"), (list, tuple)):
        result["gpu_processes"] = [
            process for process in processes if str(process.get("gpu")) in {*indexes, UNKNOWN_GPU}
        ]
    if isinstance(matrix := facts.get("topology"), Mapping):
        result["topology"] = _rows(matrix, kept)
    if isinstance(errors := facts.get("xids"), (list, tuple)):
        others = {str(at) for at in range(len(states))} - indexes
        result["xids"] = [error for error in errors if str(error.get("gpu")) not in others]
    return result
