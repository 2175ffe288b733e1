"""Prefixes of launchers, found in a log whose grammar does not declare one.

>>> launcher_prefix(b"0: model resnet50\\n1: model resnet50\\n0: step 1\\n")
'^ *(?P<rank>[0-9]+): '
>>> launcher_prefix(b"model resnet50\\n1: model resnet50\\n")
''
"""

from __future__ import annotations

import re
from mmap import mmap

from orchestrator.logs.text import clean_text

_PREFIXES = (
    r"^ *(?P<rank>[0-9]+): ",  # srun -l
    r"^\[(?P<rank>[0-9]+)\]<std(?:out|err)>:",  # horovodrun
)
_HEAD_BYTES = 1 << 16
_SHARE = 0.9
"""The launcher's own lines have no prefix."""


def launcher_prefix(data: bytes | mmap) -> str:
    """Return the pattern of the prefix that nearly all lines at the beginning of a log have, an
    empty text without one.
    """
    head = clean_text(data[:_HEAD_BYTES]).splitlines()
    lines = [line for line in head if line.strip()]
    for prefix in _PREFIXES:
        pattern = re.compile(prefix, re.ASCII)
        if sum(bool(pattern.match(line)) for line in lines) > _SHARE * len(lines):
            return prefix
    return ""
