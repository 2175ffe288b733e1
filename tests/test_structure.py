"""The direction of imports, the one home of each outside library, and what travels to nodes."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from typer.core import TyperGroup

from orchestrator.cli import main
from orchestrator.extras import EXTRAS
from orchestrator.feature import features
from orchestrator.plan.folders import frameworks, open_framework
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "orchestrator"
PARTS = sorted((REPOSITORY / "remote" / "noderun").glob("*.py"))
TRAINERS = sorted((REPOSITORY / "remote" / "trainers").glob("*/*.py"))
REMOTE = TRAINERS + PARTS
OF_FOLDERS = sorted((REPOSITORY / "templates").glob("*/*.py"))

# The ground: modules directly in the package, on which all packages stand and which use only each
# other.
GROUND = {
    "__init__", "__main__", "documents", "errors", "extras", "feature", "files", "grouping", "notes", "options", "plural",
    "pool", "procs", "strictjson", "version", "yamlfile",
}  # fmt: skip
# Each package, and the packages that it may use besides the ground. Imports inside functions and
# those for types count.
MAY_USE = {
    "inventory": "",
    "devices": "",
    "logs": "inventory",
    "plan": "devices inventory logs",
    "checks": "devices inventory plan",
    "record": "devices inventory logs plan",
    "engines": "inventory plan record",
    "transport": "inventory engines",
    "nodes": "devices inventory plan checks record transport",
    "results": "devices inventory logs plan checks record",
    "analysis": "inventory logs plan checks record results",
    "controller": "devices inventory logs plan checks record engines transport nodes results analysis",
    "report": "inventory checks record results analysis",
    "api": "devices inventory logs plan checks record engines transport nodes results analysis controller report",
    "lab": "inventory",
    "cli": "devices inventory logs plan checks record engines transport nodes results analysis controller report lab api",
    "features": (
        "devices inventory logs plan checks record engines transport nodes results analysis controller report lab api cli"
    ),
}
# What another package may import besides the names that a package hands on: its doors. Of
# `analysis` and `results` these are modules of their folders; `nodes`, `controller`, `report` and
# `cli` hand on nothing: that would load heavy libraries.
DOORS = {
    "analysis": (
        "compare/causes compare/cell_snapshot compare/cells compare/detectable compare/suspects "
        "past_cells"
    ),
    "api": "bench connection_cache find plan prepare progress sealing selection",
    "checks": "catalogue check cross_node differences facts gpus interfaces judge load",
    "cli": (
        "compare complete connection_log controller dry_run main node_states option_rows options "
        "process sealing signals submitting unreachable"
    ),
    "controller": "busy controller earlier_benches events fitness peer stage stop_rule",
    "devices": "gpu_states nvidia_smi vendor",
    "inventory": (
        "containers devices fields foreign_files formats hostset json_schema reserved schema secrets values versions"
    ),
    "logs": "failures matches metrics nccl near_miss notes numbers parse patterns steps text",
    "nodes": "cluster collect conversation deploy fanout headroom leftovers node preflight",
    "plan": (
        "baselines bench command_line configurations containers environment expectations folders "
        "framework measures option_values payload placement planning published_schema render "
        "request run_file run_schema scaffold scaling schedule schema schema_faults spec "
        "transformer trial variables"
    ),
    "record": (
        "archive archive_record bench_groups bench_parts bench_record borrow defaults deploys "
        "evidence folder_cache grammar_override journal manifest node_record node_states past_acceptance "
        "pending_work project recorded_spec refusals removal rundir sealed signature state_file "
        "submission telemetry"
    ),
    "report": (
        "cells checks compare formats/dlperf formats/json html/axes html/bench_page "
        "html/navigation html/page html/sparkline html/svg html/template references "
        "sections terminal text"
    ),
    "results": (
        "bench diagnosis_tables entries expectations foreign_log hardware keys links/collectives "
        "links/pair_verdicts log_rules lost_links numbers/drift numbers/intervals numbers/peaks "
        "numbers/physics numbers/power numbers/rounding numbers/t_distribution "
        "numbers/throughput parts/overlap parts/step_parts parts/transfers planned progress_so_far qualifications "
        "read run_history series summary telemetry/doubts telemetry/utilization values"
    ),
    "engines": "kubernetes/client kubernetes/pods listing protocol slurm/client",
    "transport": "connections",
}
# Packages that have no effects, and the modules in them that open files.
PURE = ("inventory", "devices", "logs", "plan", "checks")
READERS = {
    "inventory/read.py",
    "plan/bundle.py",
    "plan/folders.py",
    "plan/payload.py",
}
# Arithmetic on a seed, not chance.
SEEDED = {"plan/bench.py": "random"}

# Where an outside library may be imported; a library that stands in no row has no home and may not
# be used.
HOMES = {
    "fabric": ["transport/ssh/"],
    "paramiko": ["transport/ssh/"],
    "invoke": ["transport/ssh/"],
    "aiohttp": ["lab/apiserver.py"],
    "cryptography": ["transport/ssh/", "lab/identity.py"],
    "yaml": ["yamlfile.py"],
    "pydantic_core": ["inventory/fields.py", "inventory/values.py"],
    "pydantic": [
        "inventory/container_values.py",
        "inventory/fields.py",
        "inventory/schema.py",
        "inventory/values.py",
        "inventory/json_schema.py",
        "plan/schema.py",
        "plan/log_schema.py",
        "plan/published_schema.py",
        "plan/declaration.py",
        "features/published/language_schema.py",
        "features/published/schema.py",
    ],
    "jinja2": ["plan/sandbox.py", "report/html"],
    "typer": ["cli/", "features/"],
    "rich": ["cli/", "features/", "report/"],
    "matplotlib": ["features/history/trend_chart.py", "features/site/trend_charts.py", "report/"],
    "asyncssh": ["lab/asyncssh_server.py"],
    "pandas": ["api/bench.py"],
    "typing_extensions": ["api/plan.py"],
    "obstore": ["features/store/bucket.py"],
}
# What the pure packages may not do: touch files, clocks, chance, the environment, processes, the
# network.
EFFECTS = {
    "os", "pathlib", "time", "random", "secrets", "threading", "subprocess", "socket", "tempfile", "shutil", "signal", "select",
    "concurrent", "asyncio", "multiprocessing", "io", "fcntl", "getpass", "logging", "uuid",
}  # fmt: skip
# What a file that runs on nodes may import besides the standard library: libraries first, then
# files of the folder that travel with it. The runner, make_dataset.py and trainer.py stand in no
# row: they need nothing but Python.
FRAMEWORKS = {
    "train_pytorch": "torch trainer rank_progress loaders torch_ranks torch_models torch_gathered_pool torch_packed"
    " torch_steps torch_images torch_parts torch_batch_search torch_clock step_timestamps torch_profile rank_parts",
    "torch_profile": "torch",
    "torch_clock": "torch trainer",
    "train_lm": "torch trainer rank_progress torch_ranks torch_clock step_timestamps torch_profile rank_parts lm_adamw"
    " lm_batch_search lm_embedding lm_float8 lm_kernels lm_models lm_optimizer lm_parallel lm_parts lm_steps",
    "lm_kernels": "torch lm_models lm_steps",
    "lm_batch_search": "torch trainer torch_ranks lm_embedding lm_kernels lm_models lm_parallel lm_steps",
    "lm_models": "torch lm_experts lm_recompute",
    "lm_experts": "torch",
    "lm_recompute": "torch",
    "lm_loss": "torch",
    "lm_float8": "torch",
    "lm_adamw": "torch",
    "lm_optimizer": "torch lm_adamw",
    "lm_embedding": "torch lm_models",
    "lm_parallel": "torch lm_embedding lm_float8 lm_models",
    "lm_steps": "torch lm_loss lm_models lm_optimizer lm_parallel step_timestamps",
    "lm_parts": "torch lm_steps torch_packed torch_ranks step_timestamps",
    "torch_ranks": "torch trainer rank_progress",
    "torch_models": "torch",
    "torch_gathered_pool": "torch",
    "torch_packed": "torch",
    "torch_steps": "torch torch_models torch_gathered_pool torch_packed step_timestamps",
    "step_timestamps": "torch",
    "torch_images": "torch nvidia trainer torch_models loaders",
    "torch_parts": "torch trainer torch_packed torch_ranks step_timestamps torch_steps",
    "torch_batch_search": "torch trainer torch_ranks torch_images torch_steps",
    "torch_timing": "torch torch_ranks",
    "known_values": "torch",
    "collectives": "torch trainer torch_ranks torch_timing collective_calls",
    "collective_calls": "torch trainer torch_ranks known_values",
    "pairs": "torch trainer torch_ranks",
    "device_bench": "torch trainer torch_ranks torch_timing",
    "gemm": "torch trainer torch_ranks device_bench",
    "memory_bandwidth": "torch trainer torch_ranks device_bench known_values",
    "host_device": "torch trainer torch_ranks device_bench known_values",
    "device_test": "torch gemm host_device memory_bandwidth device_bench known_values torch_ranks torch_timing",
    "train_tensorflow": "tensorflow trainer rank_parts rank_progress tf_models tf_ranks tf_images",
    "tf_models": "tensorflow",
    "tf_ranks": "tensorflow trainer",
    "tf_images": "tensorflow tf_models tf_ranks loaders",
    "train_paddle": "paddle trainer rank_parts rank_progress paddle_ranks paddle_images loaders",
    "paddle_ranks": "paddle trainer",
    "paddle_images": "paddle numpy nvidia trainer paddle_ranks loaders",
    "train_jax_lm": "jax numpy trainer rank_progress jax_transformer",
    "jax_transformer": "jax",
    "train_deepspeed_lm": "torch deepspeed trainer rank_parts rank_progress lm_loss lm_models lm_parallel lm_steps"
    " torch_clock torch_ranks step_timestamps",
    "train_hf_lm": "torch transformers accelerate trainer rank_progress torch_ranks",
    "train_simulated": "trainer rank_progress simulated_rendezvous simulated_ring rank_parts",
    "rank_parts": "trainer rank_progress",
    "simulated_rendezvous": "trainer",
    "simulated_ring": "trainer simulated_rendezvous",
    "loaders": "nvidia PIL numpy",
}
PACKAGES = ["ground", *MAY_USE]
HEAVY = [
    "fabric", "paramiko", "rich", "pydantic", "numpy", "scipy", "matplotlib", "jinja2", "yaml", "cryptography",
]  # fmt: skip
MAX_LINES = 500
SIMULATED = (
    "train_simulated",
    "rank_progress",
    "simulated_rendezvous",
    "simulated_ring",
    "rank_parts",
    "trainer",
)


@cache
def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def modules_of(package: str) -> list[Path]:
    return [path for path in modules() if package_of(label(path)) == package]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a file's tree."""
    return tuple(ast.walk(tree(path)))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything a file imports, wherever in it; names taken from a
    package count as modules.
    """
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            if module == "orchestrator":
                yield from ((node.lineno, f"orchestrator.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def package_of(file: str) -> str:
    """Return the package of a module below `orchestrator`, ``ground`` for those directly in it."""
    first, _, rest = file.partition("/")
    return first if rest else "ground"


@cache
def arrows() -> dict[str, frozenset[str]]:
    """Return by module the modules that it imports, lazily, for types alone, or at its top; faces
    are modules as well, and the root package is ``__init__``."""
    files = {label(path).removesuffix(".py"): path for path in modules()}

    def module_of(dotted: str) -> str | None:
        root, *parts = dotted.split(".")
        if root != "orchestrator":
            return None
        below = "/".join(parts) or "__init__"
        return (
            below
            if below in files
            else f"{below}/__init__"
            if f"{below}/__init__" in files
            else None
        )

    uses: dict[str, set[str]] = {file: set() for file in files}
    for file, path in files.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                uses[file] |= {
                    target
                    for name in names
                    if (target := module_of(name) or module_of(str(node.module)))
                }
            elif isinstance(node, ast.Import):
                uses[file] |= {target for alias in node.names if (target := module_of(alias.name))}
    return {file: frozenset(targets - {file}) for file, targets in uses.items()}


def circles(graph: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return the pairs of a graph that can be reached from each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        ahead, reached[start] = list(graph[start]), set()
        while ahead:
            if (name := ahead.pop()) not in reached[start]:
                reached[start].add(name)
                ahead.extend(graph.get(name, ()))
    return sorted(
        {tuple(sorted((a, b))) for a in graph for b in reached[a] if a in reached.get(b, ())}
    )


def package_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {package: set() for package in MAY_USE}
    for file, targets in arrows().items():
        if (package := package_of(file)) != "ground":
            graph[package] |= {package_of(target) for target in targets} - {package, "ground"}
    return graph


def test_every_module_belongs_to_a_package_of_the_table_or_to_the_ground() -> None:
    names = [label(path).removesuffix(".py") for path in modules()]
    assert {name for name in names if package_of(name) == "ground"} == GROUND
    assert {package_of(name) for name in names} - {"ground"} == set(MAY_USE)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_uses_only_those_of_its_row(package: str) -> None:
    may = {"ground", package, *MAY_USE.get(package, "").split()}
    wrong = [
        f"{file} -> {target}"
        for file, targets in arrows().items()
        if package_of(file) == package and file not in ("__main__", "__init__")
        for target in targets
        if package_of(target) not in may
    ]
    assert wrong == []


def test_the_documented_table_of_packages_is_the_one_that_holds() -> None:
    page = (REPOSITORY / "docs" / "structure.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    above: list[str] = []
    for package, uses in MAY_USE.items():
        if rows[package] in ("all above", "all"):
            assert set(uses.split()) >= set(above) - {"report", "lab"}, package
        else:
            assert rows[package].replace("–", "").split() == uses.split(), package
        above.append(package)


def test_no_feature_uses_another() -> None:
    places = {file: tuple(file.split("/")[:2]) for file in arrows() if file.startswith("features/")}
    wrong = [
        f"{file} -> {target}"
        for file, own in places.items()
        for target in arrows()[file]
        if places.get(target, own) != own and own != ("features", "__init__")
    ]
    assert wrong == []


def test_packages_import_each_other_in_no_circle() -> None:
    assert circles(package_graph()) == []


def test_modules_import_each_other_in_no_circle() -> None:
    assert circles(arrows()) == []


def test_no_module_imports_the_root_package() -> None:
    # It imports the Python interface, so whatever imports it stands on everything.
    # `orchestrator.version` has the version.
    assert [file for file, targets in arrows().items() if "__init__" in targets] == []


def test_the_core_imports_no_feature() -> None:
    # Features are what orch does besides planning, carrying out and summarizing a bench; the core
    # reaches them by the extension points of `orchestrator.feature`.
    wrong = [
        f"{file} -> {target}"
        for file, targets in arrows().items()
        for target in targets
        if target.startswith("features/") and not file.startswith("features/")
    ]
    assert wrong == []


def test_a_circle_would_be_seen() -> None:
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [("a", "a"), ("a", "b"), ("b", "b")]


@cache
def handed_on(package: str) -> set[str]:
    """Return the names in ``__all__`` of a package's face."""
    for node in tree(PACKAGE / package / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("package", PACKAGES)
def test_another_package_is_entered_by_its_face_or_a_door(package: str) -> None:
    wrong = []
    for path, node in ((file, node) for file in modules_of(package) for node in nodes(file)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
            "orchestrator."
        ):
            continue
        below = str(node.module).split(".")[1:]
        if below[0] == package or below[0] not in MAY_USE:
            continue
        for alias in node.names:
            is_face = (PACKAGE / "/".join(below) / "__init__.py").exists()
            module = "/".join(below[1:]) if not is_face else "/".join([*below[1:], alias.name])
            entered = (
                is_face
                and alias.name in handed_on("/".join(below))
                or module in DOORS.get(below[0], "").split()
            )
            if not entered or alias.name.startswith("_"):
                wrong.append(f"{path}:{node.lineno}: {node.module} {alias.name}")
    assert wrong == []


@pytest.mark.parametrize("package", MAY_USE)
def test_a_face_hands_on_no_name_of_a_module_of_its_own(package: str) -> None:
    # `from orchestrator.logs import parse` would be the function in one place and the module in
    # another.
    assert handed_on(package) & {path.stem for path in (PACKAGE / package).glob("*")} == set()


def test_only_a_face_lists_its_names() -> None:
    # Elsewhere a name without an underscore is public; a list would say it twice.
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert [path for path in modules if "\n__all__" in path.read_text(encoding="utf-8")] == []


def test_every_door_is_used() -> None:
    used: set[str] = set()
    for file, targets in arrows().items():
        used |= {target for target in targets if package_of(target) != package_of(file)}
    listed = {f"{package}/{module}" for package, row in DOORS.items() for module in row.split()}
    assert listed - used == set()


@pytest.mark.parametrize("package", PURE)
def test_planning_and_reading_logs_have_no_effects(package: str) -> None:
    pure = [path for path in modules_of(package) if label(path) not in READERS]
    taken = [
        f"{path}:{line}: {name}"
        for path in pure
        for line, name in imports(path)
        if name.split(".")[0] in EFFECTS - {SEEDED.get(label(path))}
    ]
    opened = [
        f"{path}:{node.lineno}: {node.func.id}()"
        for path in pure
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("open", "input", "print")
    ]
    assert taken + opened == []


@pytest.mark.parametrize("package", PACKAGES)
def test_an_outside_library_is_imported_in_its_home_only(package: str) -> None:
    wrong = []
    for path, line, name in (
        (file, *imported) for file in modules_of(package) for imported in imports(file)
    ):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == "orchestrator":
            continue
        if not any(label(path).startswith(home) for home in HOMES.get(top, [])):
            wrong.append(f"{path}:{line}: {name} lives in {HOMES.get(top, 'no module')}")
    assert wrong == []


@pytest.mark.parametrize(
    "package", [package for package in PACKAGES if package not in ("cli", "report")]
)
def test_only_the_edge_prints(package: str) -> None:
    # The lab's programs run as processes of their own; what they print is their log.
    calls = [
        f"{path}:{node.lineno}"
        for path in modules_of(package)
        if "__main__" not in path.read_text(encoding="utf-8")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert calls == []


@pytest.mark.parametrize("files", [modules(), REMOTE], ids=["orchestrator", "remote"])
def test_no_file_is_longer_than_a_reader_can_hold(files: list[Path]) -> None:
    assert [
        path for path in files if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES
    ] == []


# What only `record/`, and `record.py` of a feature with files of its own, knows: keys of files that
# it reads and writes, and what hands out their content as it is.
KEYS_OF_RECORDS = {
    "borrowed", "superseded", "planned_with", "course", "placement", "first_rank", "nproc", "stopped_mono_s", "ended_mono_s",
    "oom_kills", "slowed_us", "skew_s", "bound_s", "offset_s",
}  # fmt: skip
PLAIN_CONTENT = {"manifest_content", "exit_content", "update_manifest", "read_state", "write_state"}
# What the progress of a bench tells has keys of its own.
OWN_KEYS = {"api/progress.py": {"skew_s"}}


def keys_asked_for(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, key) of every subscript and ``.get`` with a literal key, and the names of
    methods that are called.
    """
    for node in nodes(path):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            yield node.lineno, node.slice.value
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            yield node.lineno, name
            if name == "get" and node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


@pytest.mark.parametrize(
    "package", [package for package in PACKAGES if package not in ("record", "lab")]
)
def test_what_stands_in_a_record_is_known_to_its_reader_alone(package: str) -> None:
    asked_for = [
        f"{path}:{line}: {key}"
        for path in modules_of(package)
        if not re.fullmatch(r"features/\w+/record\.py", label(path))
        for line, key in keys_asked_for(path)
        if key in (KEYS_OF_RECORDS | PLAIN_CONTENT) - OWN_KEYS.get(label(path), set())
    ]
    assert asked_for == []


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "record"])
def test_events_of_the_journal_are_named_in_its_table_alone(package: str) -> None:
    named = [
        f"{path}:{node.lineno}: {node.args[0].value}"
        for path in modules_of(package)
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("event", "journal")
        if node.args and isinstance(node.args[0], ast.Constant)
    ]
    assert named == []


def test_what_runs_on_nodes_imports_the_standard_library_and_its_framework_only() -> None:
    wrong = []
    for path, line, name in (
        (file, *imported) for file in REMOTE + OF_FOLDERS for imported in imports(file)
    ):
        allowed = {"noderun"} if path in PARTS else set(FRAMEWORKS.get(path.stem, "").split())
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top not in allowed:
            wrong.append(f"{path}:{line}: {name}")
    assert wrong == []


@pytest.mark.parametrize("name", sorted(frameworks()))
def test_a_payload_has_every_file_that_its_files_import_and_no_other(name: str) -> None:
    payload = open_framework(name).framework.payload
    neighbours = {
        path.stem: path
        for path in TRAINERS + [path for path in OF_FOLDERS if path.parent.name == name]
    }
    needed = set(payload[:1])
    waiting = list(needed)
    while waiting:
        imported = {
            top
            for _, dotted in imports(neighbours[Path(waiting.pop()).stem])
            if (top := dotted.split(".")[0]) in neighbours
        }
        waiting += [f"{module}.py" for module in imported if f"{module}.py" not in needed]
        needed |= {f"{module}.py" for module in imported}
    assert set(payload) == needed


def test_the_bare_name_of_a_file_that_travels_to_nodes_belongs_to_one_file() -> None:
    names = Counter(path.name for path in TRAINERS)
    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_of_ours_imports_what_runs_on_nodes() -> None:
    remote = {path.stem for path in TRAINERS} | {"remote", "noderun"}
    wrong = [
        f"{path}:{line}"
        for path in modules()
        for line, name in imports(path)
        if name.split(".")[0] in remote
    ]
    assert wrong == []


def test_what_runs_everywhere_is_written_in_the_language_of_python_3_6() -> None:
    for path in [*PARTS, *OF_FOLDERS, *(path for path in TRAINERS if path.stem in SIMULATED)]:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 6))


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=variables,
    )


def test_help_imports_the_table_of_commands_and_none_of_them() -> None:
    code = (
        "import json, sys\n"
        "sys.argv = ['orch', '--help']\n"
        "from orchestrator.cli.main import main\n"
        "try: main()\n"
        f"finally: print(json.dumps([name for name in {HEAVY} if name in sys.modules]\n"
        "    + sorted(name for name in sys.modules if name.startswith('orchestrator'))), file=sys.stderr)\n"
    )
    done = run_python(code)
    assert done.returncode == 0 and "bench" in done.stdout, done.stderr
    assert json.loads(done.stderr) == [
        "orchestrator", "orchestrator.cli", "orchestrator.cli.conversion", "orchestrator.cli.main",
        "orchestrator.errors", "orchestrator.feature", "orchestrator.features",
        *(f"orchestrator.features.{name}" for name in features()),
    ]  # fmt: skip


def test_the_help_has_each_command_on_one_line() -> None:
    lines = run_python(
        "import sys; sys.argv = ['orch', '--help']; from orchestrator.cli.main import main; main()"
    ).stdout
    rows = re.findall(r"(?m)^  (\w+) +([A-Z].*\.)$", lines)
    assert rows == [row for commands in main.MODULES.values() for row in commands.items()]
    assert max(map(len, lines.splitlines())) < 80


def test_a_bench_an_acceptance_and_a_table_need_no_library_of_an_extra() -> None:
    modules = ["cli.controller", "cli.summarize", "report.terminal", "api.plan"]
    modules += ["features.accept.controller"] if "accept" in features() else []
    loads = "; ".join(f"import orchestrator.{module}" for module in modules)
    done = run_python(
        f"import sys; {loads}\nprint([name for name in {[*EXTRAS, 'numpy', 'scipy']} if name in sys.modules])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


COMMANDS = [command for commands in main.MODULES.values() for command in commands]


def test_the_table_of_modules_names_every_command() -> None:
    whole = main.whole()
    assert list(whole.commands) == COMMANDS
    assert all(
        command.callback or isinstance(command, TyperGroup) for command in whole.commands.values()
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    code = f"import sys; sys.argv = ['orch', {command!r}, '--help']; from orchestrator.cli.main import main; main()"
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "") and f"Usage: orch {command}" in done.stdout
