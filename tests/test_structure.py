"""The direction of imports, the one home of each outside library, and what travels to nodes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from orchestrator.cli import main
from orchestrator.library import frameworks, open_framework

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "orchestrator"
REMOTE = sorted((REPOSITORY / "remote").glob("*.py"))

# Every module of the package, or the package a module lies in, stands in exactly one layer; imports point downwards only.
LAYERS = {
    "core": """
        __init__ errors hostset inventory inventory_schema inventory_base inventory_formats inventory_values inventory_ansible
        inventory_groups versions
        measures framework framework_schema published published_schema publishedlines publishedtables publisheddoubts
        spec topology render logparse logpattern logtext steps strictjson nccl stats tempo intervals hardware peaks physics
        check nvidiasmi nodefacts fitness fitness_among fitness_expected fitness_gpus fitness_host fitness_network
        summary overlap stepparts explain grids sheets collectives pairs pairtimes pairsheet stopping tuning beside diagnosis
        knownfailures differences
        comparison distinctions sealed redaction
    """,
    "shell": """
        foreign yamlfile library files rundir evidence planned pool readlogs results account history project bench transport
        node runnercall cluster headroom fanout preflight staging deployed procs peer reattach watch launch blame campaign
        ownership planrecord pace search tuned resume collect chronicle comparing curves explaining sealedtar archive lab
    """,
    "edge": "report cli __main__",
}
ORDER = list(LAYERS)
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names.split()}

# Where an outside library may be imported; a library that stands in no row has no home and may not be used.
HOMES = {
    "fabric": ["transport/"],
    "paramiko": ["transport/"],
    "invoke": ["transport/"],
    "cryptography": ["transport/", "lab/identity.py"],
    "ClusterShell": ["hostset.py"],
    "yaml": ["yamlfile.py"],
    "pydantic_core": ["inventory_values.py"],
    "pydantic": ["inventory_schema.py", "inventory_values.py", "framework_schema.py", "published_schema.py"],
    "jinja2": ["render.py", "report/html"],
    "numpy": ["stats.py"],
    "scipy": ["intervals.py"],
    "typer": ["cli/"],
    "rich": ["cli/", "report/"],
    "matplotlib": ["report/"],
    "asyncssh": ["lab/asyncssh_server.py"],
}
# What core may not do: touch files, clocks, chance, the environment, processes, the network.
EFFECTS = {
    "os", "pathlib", "time", "random", "secrets", "threading", "subprocess", "socket", "tempfile", "shutil", "signal", "select",
    "concurrent", "asyncio", "multiprocessing", "io", "fcntl", "getpass", "logging", "uuid",
}  # fmt: skip
# What a file that runs on nodes may import besides the standard library: libraries first, then files of the folder that travel
# with it. The runner, make_dataset.py and trainer.py stand in no row: they need nothing but Python.
FRAMEWORKS = {
    "train_pytorch": "torch trainer loaders torch_ranks torch_models torch_gathered_pool torch_packed torch_steps torch_images"
    " torch_parts torch_batch_search",
    "torch_ranks": "torch trainer",
    "torch_models": "torch",
    "torch_gathered_pool": "torch",
    "torch_packed": "torch",
    "torch_steps": "torch trainer torch_models torch_gathered_pool torch_packed",
    "torch_images": "torch nvidia trainer torch_models loaders",
    "torch_parts": "torch trainer torch_packed torch_steps",
    "torch_batch_search": "torch trainer torch_ranks torch_images torch_steps",
    "collectives": "torch trainer torch_ranks collective_calls",
    "collective_calls": "torch trainer torch_ranks",
    "pairs": "torch trainer torch_ranks",
    "train_tensorflow": "tensorflow trainer tf_models tf_ranks tf_images",
    "tf_models": "tensorflow",
    "tf_ranks": "tensorflow trainer",
    "tf_images": "tensorflow tf_models tf_ranks",
    "train_paddle": "paddle trainer paddle_ranks paddle_images loaders",
    "paddle_ranks": "paddle trainer",
    "paddle_images": "paddle numpy nvidia trainer paddle_ranks loaders",
    "train_simulated": "simulated_meeting simulated_ring",
    "simulated_meeting": "",
    "simulated_ring": "simulated_meeting",
    "loaders": "nvidia PIL numpy",
}
HEAVY = [
    "fabric", "paramiko", "rich", "pydantic", "numpy", "scipy", "matplotlib", "jinja2", "yaml", "ClusterShell", "cryptography",
]  # fmt: skip
MAX_LINES = 400
MAX_REMOTE_LINES = 350


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything a file imports, wherever in it; names taken from a package count as modules."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            if module == "orchestrator":
                yield from ((node.lineno, f"orchestrator.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def layer(dotted: str) -> str:
    name = dotted.split(".")[1] if "." in dotted else "__init__"
    # `from orchestrator import __version__` names a value of the package itself.
    return LAYER_OF["__init__" if name.startswith("__") else name]


def own_name(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_belongs_to_one_layer_and_every_name_in_the_layers_exists() -> None:
    names = [name for text in LAYERS.values() for name in text.split()]
    assert len(names) == len(set(names))
    there = {own_name(path) for path in modules()}
    assert there - set(names) == set(), "these modules stand in no layer"
    assert set(names) - there == set(), "these names are no modules any more"


@pytest.mark.parametrize("path", modules(), ids=label)
def test_imports_point_from_edge_to_shell_to_core(path: Path) -> None:
    mine = ORDER.index(LAYER_OF[own_name(path)])
    wrong = [
        f"{path}:{line}: {name}"
        for line, name in imports(path)
        if name.split(".")[0] == "orchestrator" and ORDER.index(layer(name)) > mine
    ]
    assert wrong == []


@pytest.mark.parametrize("path", [path for path in modules() if LAYER_OF.get(own_name(path)) == "core"], ids=label)
def test_core_has_no_effects(path: Path) -> None:
    taken = [f"{path}:{line}: {name}" for line, name in imports(path) if name.split(".")[0] in EFFECTS]
    opened = [
        f"{path}:{node.lineno}: {node.func.id}()"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "input", "print")
    ]
    assert taken + opened == []


@pytest.mark.parametrize("path", modules(), ids=label)
def test_an_outside_library_is_imported_in_its_home_only(path: Path) -> None:
    wrong = []
    for line, name in imports(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == "orchestrator":
            continue
        if not any(label(path).startswith(home) for home in HOMES.get(top, [])):
            wrong.append(f"{path}:{line}: {name} lives in {HOMES.get(top, 'no module')}")
    assert wrong == []


@pytest.mark.parametrize("path", modules(), ids=label)
def test_only_the_edge_prints(path: Path) -> None:
    # The lab's programs run as processes of their own; what they print is their log.
    if label(path).startswith(("cli/", "report/")) or "__main__" in path.read_text(encoding="utf-8"):
        return
    calls = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert calls == []


@pytest.mark.parametrize("path", modules(), ids=label)
def test_no_module_is_longer_than_a_reader_can_hold(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.name)
def test_what_runs_on_nodes_imports_the_standard_library_and_its_framework_only(path: Path) -> None:
    allowed = FRAMEWORKS.get(path.stem, "").split()
    wrong = []
    for line, name in imports(path):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top not in allowed:
            wrong.append(f"{path}:{line}: {name}")
    assert wrong == []


@pytest.mark.parametrize("path", [path for path in REMOTE if path.name != "noderun.py"], ids=lambda path: path.name)
def test_no_program_of_a_node_is_longer_than_a_reader_can_hold(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_REMOTE_LINES


@pytest.mark.parametrize("name", sorted(frameworks()))
def test_a_payload_has_every_file_that_its_files_import_and_no_other(name: str) -> None:
    payload = open_framework(name).framework.payload
    neighbours = {path.stem: path for path in REMOTE}
    needed = set(payload[:1])
    waiting = list(needed)
    while waiting:
        imported = {
            top for _, dotted in imports(neighbours[Path(waiting.pop()).stem]) if (top := dotted.split(".")[0]) in neighbours
        }
        waiting += [f"{module}.py" for module in imported if f"{module}.py" not in needed]
        needed |= {f"{module}.py" for module in imported}
    assert set(payload) == needed


def test_nothing_of_ours_imports_what_runs_on_nodes() -> None:
    remote = {path.stem for path in REMOTE} | {"remote"}
    wrong = [f"{path}:{line}" for path in modules() for line, name in imports(path) if name.split(".")[0] in remote]
    assert wrong == []


@pytest.mark.parametrize("name", ["noderun.py", "train_simulated.py", "simulated_meeting.py", "simulated_ring.py"])
def test_what_runs_everywhere_is_written_in_the_language_of_python_3_6(name: str) -> None:
    path = REPOSITORY / "remote" / name
    ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 6))


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=variables)


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import json, sys\n"
        "sys.argv = ['orch', '--help']\n"
        "from orchestrator.cli.main import main\n"
        "try: main()\n"
        f"finally: print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)\n"
    )
    done = run_python(code)
    assert done.returncode == 0 and "bench" in done.stdout, done.stderr
    assert json.loads(done.stderr) == []


COMMANDS = [command for commands in main.MODULES.values() for command in commands]


def test_the_table_of_modules_names_every_command() -> None:
    whole = typer.main.get_command(main.program())
    assert isinstance(whole, TyperGroup) and list(whole.commands) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    code = f"import sys; sys.argv = ['orch', {command!r}, '--help']; from orchestrator.cli.main import main; main()"
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "") and f"Usage: orch {command}" in done.stdout
