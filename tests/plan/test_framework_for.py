"""Which folder a model chooses where nobody names one, beside folders with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.plan.folders import framework_for
from tests.support.own_folders import WHOLE


def folder(base: Path, name: str, text: str) -> None:
    (base / name).mkdir()
    (base / name / "framework.yaml").write_text(text)
    (base / name / "launch.sh.j2").write_text(
        "#!/bin/bash\nexec true {{ options.width }} {{ options.mode }}\n"
    )


def test_a_faulty_folder_stops_no_model_of_another(tmp_path: Path) -> None:
    folder(tmp_path, "mine", WHOLE.replace("mlp:", "own:"))
    folder(tmp_path, "broken", "title: x\nmodels: {other: {}}\nno_such_key: 1\n")
    folder(tmp_path, "torn", "title: [\n")
    assert framework_for("own", (tmp_path,)) == "mine"
    assert framework_for("resnet50", (tmp_path,)) == "pytorch"
    assert framework_for("other", (tmp_path,)) == "broken", "whoever opens it says what is wrong"


def test_a_model_of_no_folder_names_the_folders_that_could_not_be_read(tmp_path: Path) -> None:
    folder(tmp_path, "torn", "title: [\n")
    with pytest.raises(ConfigError) as caught:
        framework_for("resnet5", (tmp_path,))
    hint = caught.value.hint or ""
    assert "listed by orch framework list --json; did you mean 'resnet50'?" in hint
    assert f"{tmp_path}/torn is faulty and may have it: orch framework check torn" in hint


def test_a_framework_given_as_a_model_is_told_what_it_has() -> None:
    with pytest.raises(ConfigError) as caught:
        framework_for("maxtext")
    assert caught.value.message == "expected a model, got the framework 'maxtext'"
    assert (caught.value.hint or "").startswith("name a model of it, with -f maxtext; it has ")
