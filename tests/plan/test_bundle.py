"""The programs that travel to nodes: one text each, of parts that each stand on their own, for any
Python from 3.6 on.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.nodes.node import LEADER, boot_arguments
from orchestrator.plan.bundle import BOUNDARY, bundle, bundle_on_demand, parts
from orchestrator.plan.payload import (
    booted_program,
    node_program,
    probe_source,
    rank_source,
    runner_source,
    telemetry_source,
)
from tests.support.judge import LIMIT_S
from tests.support.machine import old_interpreters, python_name

FOLDER = Path(__file__).parents[2] / "remote" / "noderun"
BOOTED: dict[str, Callable[[], bytes]] = {
    "serve": runner_source,
    "host_audit": lambda: booted_program("host_audit"),
}
FILES: dict[str, Callable[[], bytes]] = {
    "rank": rank_source,
    "container_probe": probe_source,
    "telemetry": telemetry_source,
    "node_test": lambda: node_program("node_test"),
}


def names_defined(path: Path) -> list[str]:
    """The names that a part adds to the namespace of its bundle, modules of the standard library
    left out.
    """
    names: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            ]
    return names


def imports_of_parts(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Every import of a part, wherever in a text it stands and however it is written."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module if node.module and not node.level else "noderun"]
        else:
            continue
        if any(module.split(".")[0] == "noderun" for module in modules):
            found.append(node)
    return found


def test_every_part_travels_in_one_of_the_bundles() -> None:
    travelling = {name for entry in FILES | BOOTED for name in parts(FOLDER, entry)}
    assert travelling == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def test_no_name_is_defined_in_two_parts() -> None:
    counts = Counter(name for path in FOLDER.glob("*.py") for name in names_defined(path))
    assert len(counts) > 100 and [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("entry", FILES)
def test_a_part_comes_after_all_that_it_imports(entry: str) -> None:
    earlier: set[str] = set()
    for name in parts(FOLDER, entry):
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        for node in imports_of_parts(tree):
            assert isinstance(node, ast.ImportFrom) and node in tree.body and node.module, (
                f"{name}.py:{node.lineno}"
            )
            assert node.module.removeprefix("noderun.") in earlier, f"{name}.py:{node.lineno}"
        earlier.add(name)


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.py"))])
def test_a_part_imports_names_of_others_under_these_names(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    for node in imports_of_parts(tree):
        assert isinstance(node, ast.ImportFrom) and node.module, f"{name}.py:{node.lineno}"
        assert not [alias for alias in node.names if alias.asname or alias.name == "*"], (
            f"{name}.py:{node.lineno}"
        )


@pytest.mark.parametrize("entry", FILES | BOOTED)
def test_a_bundle_is_python_3_6_and_imports_nothing_of_ours(entry: str) -> None:
    tree = ast.parse((FILES | BOOTED)[entry](), feature_version=(3, 6))
    assert imports_of_parts(tree) == []
    defined = Counter(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )
    assert defined == Counter(
        node.name
        for name in parts(FOLDER, entry)
        for node in ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )


def test_a_rank_waits_for_few_modules() -> None:
    imported = {
        alias.name
        for node in ast.parse(rank_source()).body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported <= {"errno", "json", "os", "signal", "sys", "time"}
    assert len(rank_source()) * 5 < len(runner_source())


def test_imports_over_several_lines_are_left_out_and_the_rest_stays_as_it_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text('FIRST, SECOND = 1, "from noderun.b import x"\n')
    (tmp_path / "b.py").write_text(
        '"""About b."""\n\nfrom noderun.a import (\n    FIRST,\n    SECOND,\n)\n\nprint(FIRST, SECOND)'
    )
    text = bundle(tmp_path, "b").decode()
    assert (
        text.splitlines()[0] == "# ---- noderun/a.py"
        and "# ---- noderun/b.py" in text
        and '"""About b."""' in text
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == "1 from noderun.b import x\n"


def test_a_part_is_loaded_once_when_it_is_needed_and_its_lines_keep_their_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text('print("a")\nONE = 1\n')
    (tmp_path / "b.py").write_text(
        'from noderun.a import ONE\n\nprint("b", ONE)\n\ndef two():\n    raise ValueError(ONE)\n'
    )
    (tmp_path / "c.py").write_text('print("c")\n')
    (tmp_path / "d.py").write_text(
        "from noderun.a import ONE\n\nprint(ONE)\n\ndef ask(of):\n    if of == 3:\n"
        "        from noderun.c import three\n    from noderun.b import (\n        two,\n    )\n\n    two()\n\nask(2)\n"
    )
    text = bundle_on_demand(tmp_path, "d")
    assert len(text.split(BOUNDARY)) == 4
    done = subprocess.run(
        [sys.executable, *boot_arguments(text)],
        input=LEADER + text,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout == b"a\n1\nb 1\n"
    assert b'File "noderun/b.py", line 8, in two\nValueError: 1' in done.stderr


@pytest.mark.parametrize("python", old_interpreters(), ids=python_name)
def test_both_bundles_run_bare_under_every_python_of_this_machine(
    python: str, tmp_path: Path
) -> None:
    request = {"op": "status", "nonce": "n", "root": str(tmp_path / "work"), "node": "a"}
    runner = runner_source()
    argv = [python, *boot_arguments(runner)]
    asked = LEADER + runner + json.dumps(request).encode() + b"\n"
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=LIMIT_S, check=True)
    mark, answer = done.stdout.splitlines()
    assert mark == b"ORCH n" and set(json.loads(answer)) == {"owner", "runs"} and done.stderr == b""

    for name in ("logs", "ranks"):
        (tmp_path / name).mkdir()
    (tmp_path / "rank_wrapper.py").write_bytes(rank_source())
    argv = [python, "-I", "-S", "rank_wrapper.py", "--", "/bin/sh", "-c", "echo $RANK; exit 3"]
    variables = {"PATH": os.environ["PATH"], "RANK": "5", "LOCAL_RANK": "1"}
    done = subprocess.run(
        argv, env=variables, cwd=tmp_path, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    assert (tmp_path / "logs" / "rank-5.out").read_text() == "5\n"
    record = json.loads((tmp_path / "ranks" / "5.json").read_text())
    assert (record["rank"], record["local_rank"], record["code"], record["signal"]) == (
        5,
        1,
        3,
        None,
    )


@pytest.mark.parametrize("words", [[], ["--"], ["rank", "--", "true"]])
def test_a_wrapper_without_a_command_says_what_it_expects(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "rank_wrapper.py").write_bytes(rank_source())
    argv = [sys.executable, "-I", "-S", str(tmp_path / "rank_wrapper.py"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"rank_wrapper.py: expected -- and the command of a rank, got {words}\n",
    )
