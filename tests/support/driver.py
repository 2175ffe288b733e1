"""NVIDIA's management library, as a stand-in for machines without a GPU: ``driver.c`` compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S


def stand_in(folder: Path, *flags: str) -> str:
    """Return the path of the library; skip the test without a C compiler."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler for the driver's stand-in")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("driver.c")
    subprocess.run(
        ["cc", "-shared", "-fPIC", *flags, "-o", str(library), str(source)],
        check=True,
        timeout=LIMIT_S,
    )
    return str(library)
