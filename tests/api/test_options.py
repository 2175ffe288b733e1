"""The arguments of `orchestrator.prepare`: those of its type are those of the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import orchestrator
from orchestrator.api.arguments import ARGUMENTS
from orchestrator.options import OPTIONS, BenchOption

MODULE = Path(orchestrator.__file__).parent / "api" / "options.py"
HEAD = '''"""The options of `orchestrator.prepare`, written from the rows of `orchestrator.options`.

After a change of a row: ``ORCH_UPDATE_GOLDEN=1 pytest tests/api/test_options.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from orchestrator.api.arguments import Values


class Options(TypedDict, total=False):
    """Options of a bench; an option of type `Values` takes one value or several."""

'''
TYPES = {
    "text": "str",
    "hosts": "str | Path | Sequence[str]",
    "texts": "Sequence[str]",
    "count": "int",
    "flag": "bool",
    "switch": "bool",
    "duration": "float",
    "path": "str | Path",
    "paths": "Sequence[str | Path]",
}


def type_of(row: BenchOption) -> str:
    if row.is_list:
        return "Mapping[str, Values]" if row.type == "texts" else "Values"
    return TYPES[row.type]


def test_the_type_of_the_options_is_written_from_their_rows() -> None:
    fields = [
        f"    # {OPTIONS[name].help}\n    {argument}: {type_of(OPTIONS[name])} | None\n"
        for argument, name in ARGUMENTS.items()
    ]
    text = HEAD + "".join(fields)
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        MODULE.write_text(text, encoding="utf-8")
    assert MODULE.read_text(encoding="utf-8") == text


def test_a_name_that_is_no_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="expected the name of an option, got dtypes; did you mean"):
        orchestrator.prepare("resnet50", dtypes="fp16")  # type: ignore[call-arg]
