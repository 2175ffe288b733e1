"""Texts for nodes: every value arrives unchanged, and a template gets at nothing but the values that it is given."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, OrchError
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.plan import folders as library
from orchestrator.plan import framework as framework_module
from orchestrator.plan import sandbox
from orchestrator.plan.environment import env_file
from orchestrator.plan.folders import FrameworkFolder, frameworks, open_framework
from orchestrator.plan.framework import payload_path
from orchestrator.plan.placement import place
from orchestrator.plan.render import NodePlan, Plan, RenderedFile, folded, render, without_secrets
from orchestrator.plan.sandbox import command
from orchestrator.plan.spec import RunSpec
from tests.support.examples import examples
from tests.support.rendering import FRAMEWORK, rendered

# What a shell, YAML or JSON could misread. A NUL cannot be in a file name or an argument, a lone surrogate in no file at all.
TEXTS = st.text(st.characters(exclude_characters="\0\r", exclude_categories=("Cs",)), max_size=60)
ODD = ["", " ", "-n", "a b", "$HOME", "$(id)", "`id`", "';id;'", '"', "\\", "a\nb", "a\n", "*", "~", "ünï", "!!", "\x1b[2J"]
ODD += ["x" * 4096, "~/", "~/a b"]
FAST = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def text_of(plan: Plan) -> str:
    return plan.nodes[0].files[-1].content


def words_of(script: str, folder: Path) -> list[str]:
    """Run a script and return the words that its ``printf '%s\\0'`` got."""
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, timeout=30, check=True)
    return done.stdout.decode().split("\0")[:-1]


def with_examples(function: Any) -> Any:
    for text in ODD:
        function = example(text)(function)
    return function


@with_examples
@given(TEXTS)
@FAST
def test_a_value_reaches_the_program_unchanged_through_a_shell_script(tmp_path: Path, value: str) -> None:
    template = "printf '%s\\0' {{ options.value }} --flag={{ host_vars.thing }} {{ options.several }} \"$PWD\"\n"
    script = text_of(rendered(template, {"value": value, "several": [value, "x", value]}))
    # Of the inventory's values alone, one that begins with ~/ is a path in the home of the node.
    thing = f"{Path.home()}/{value[2:]}" if value.startswith("~/") else value
    assert words_of(script, tmp_path) == [value, f"--flag={thing}", value, "x", value, str(tmp_path)]


def test_references_in_search_paths_are_expanded_on_the_node_and_in_nothing_else() -> None:
    values = {
        "PATH": "/x:$PATH", "LD_LIBRARY_PATH": "${BASE}/lib it's:/$(id):`id`:$BASE:$1:$", "MISSING_PATH": "/m:$NOT_SET",
        "PASSWORD": "pa$BASE", "TWICE_PATH": "$BASE$BASE",
    }  # fmt: skip
    script = "set -euo pipefail\n" + env_file(FRAMEWORK, Host("n", "10.0.0.1", env=values), {})
    script += "".join(f'printf "%s\\0" "${name}"\n' for name in values)
    variables = {"PATH": "/bin", "BASE": "/b  b"}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.split("\0")[:-1] == [
        "/x:/bin", "/b  b/lib it's:/$(id):`id`:/b  b:$1:$", "/m:", "pa$BASE", "/b  b/b  b",
    ], done.stderr  # fmt: skip


def environment_of(script: str, name: str) -> subprocess.CompletedProcess[str]:
    """Execute a script as launch.sh does, then print a variable and the options of the shell."""
    text = f'set -euo pipefail\n{script}printf \'%s|%s\' "${name}" "$-"'
    variables = {"PATH": "/bin:/usr/bin"}
    return subprocess.run(["bash", "-c", text], env=variables, capture_output=True, text=True, timeout=30, check=False)


def test_setup_lines_run_first_in_the_shell_of_the_run_and_without_its_strictness() -> None:
    lines = ["export LD_LIBRARY_PATH=/m$UNSET", "f() { false; true; }; f", "NCCL_ALGO=Tree\nexport NCCL_ALGO\n"]
    host = Host("n", "10.0.0.1", env={"LD_LIBRARY_PATH": "/x:$LD_LIBRARY_PATH", "NCCL_ALGO": "Ring"}, vars={"setup": lines})
    script = env_file(replace(FRAMEWORK, setup=("export LATER=$NCCL_ALGO",)), host, {})
    done = {name: environment_of(script, name).stdout for name in ("LD_LIBRARY_PATH", "NCCL_ALGO", "LATER")}
    assert {name: value.split("|")[0] for name, value in done.items()} == {
        "LD_LIBRARY_PATH": "/x:/m", "NCCL_ALGO": "Ring", "LATER": "Tree",
    }  # fmt: skip
    assert all({"e", "u"} <= set(value.split("|")[1]) for value in done.values())


def test_a_setup_line_that_fails_ends_the_run_with_its_words() -> None:
    host = Host("n", "10.0.0.1", vars={"setup": ["true", "cd '/no such'  # it's", "echo after"]})
    done = environment_of(env_file(FRAMEWORK, host, {}), "HOME")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "setup: line 2 (cd '/no such' # it's) ended with exit code 1"


def test_setup_lines_cannot_change_the_identity_of_a_run() -> None:
    host = Host("n", "10.0.0.1", gpus=1, vars={"setup": "unset ORCH_RUN_ID"})
    spec = RunSpec("echo", "resnet50", 1, 1, "cuda", 128, "fp32", "synthetic", 20, 5, 60.0, {})
    with pytest.raises(ConfigError) as caught:
        render(FRAMEWORK, {}, spec, place(spec, [host], 20000), {"n": host}, run_id="r", repeat=1, payload={})
    assert "ORCH_RUN_ID" in caught.value.message and "host n" in caught.value.where


def test_a_secret_with_a_reference_is_not_shown_in_part() -> None:
    host = Host("n", "10.0.0.1", gpus=1, env={"TOKEN_PATH": "hush:$HOME/hush"})
    file = RenderedFile("env.sh", env_file(FRAMEWORK, host, {}), 0o600)
    plan = Plan("r", 1, None, None, {}, (NodePlan(None, (file,), ()),))  # type: ignore[arg-type]
    (shown,) = without_secrets(plan, Inventory("i", (host,)).redaction()).nodes
    assert "hush" not in shown.files[0].content and "TOKEN_PATH=(not shown)" in shown.files[0].content


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("conda run -n pt python", "conda run -n pt python"), ("'/opt/my env/python'", "'/opt/my env/python'"),
        ("~/venv/bin/python", '"$HOME"/venv/bin/python'), ("~/bin/wrap -x python", '"$HOME"/bin/wrap -x python'),
        ("/opt/a;b", "'/opt/a;b'"),
    ],
)  # fmt: skip
def test_an_interpreter_may_be_a_command_of_several_words(python: str, words: str) -> None:
    context = {"python": command(Host("n", "10.0.0.1", vars={"python": python}).python)}
    assert sandbox.rendered("t", {"t": "{{ python }}"}, "sh", context, folder="f") == words


@pytest.mark.parametrize("name", ["python", "runner_python"])
def test_an_interpreter_with_an_open_quote_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(Host("n", "10.0.0.1", vars={name: "'/opt/my env/python"}), name)
    assert f"vars.{name} of host n" in caught.value.where and "no closing quotation" in caught.value.message


@given(st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]{0,9}\Z"), TEXTS, max_size=4))
@FAST
def test_the_environment_of_a_host_reaches_the_program_unchanged(tmp_path: Path, values: dict[str, str]) -> None:
    values = {f"MY_{name}_": value for name, value in values.items()}
    script = env_file(FRAMEWORK, Host("n", "10.0.0.1", env=values), {}) + "printf '%s\\0'"
    script += "".join(f' "${{{name}}}"' for name in values)
    assert words_of(script, tmp_path) == (list(values.values()) or [""])


def test_a_variable_of_the_experiment_wins_over_that_of_the_host_which_wins_over_the_framework(tmp_path: Path) -> None:
    host = Host("n", "10.0.0.1", env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    script = env_file(replace(FRAMEWORK, env={"NCCL_PROTO": "Simple", "A": "a"}), host, {"NCCL_ALGO": "Tree"})
    assert words_of(script + "printf '%s\\0' $NCCL_ALGO $NCCL_PROTO $A", tmp_path) == ["Tree", "LL", "a"]


@with_examples
@given(TEXTS)
@FAST
def test_a_value_survives_json_and_yaml(value: str) -> None:
    options = {"value": value, "list": [value, 1, True, None]}
    template = '{"a": {{ options.value }}, "b": {{ options.list }}, "n": {{ spec.nodes }}}'
    expected = {"a": value, "b": [value, 1, True, None], "n": 1}
    assert json.loads(text_of(rendered(template, options, target="json"))) == expected
    if value.isprintable():  # YAML forbids some control characters even inside quotes
        assert yaml.safe_load(text_of(rendered(template, options, target="yaml"))) == expected


@pytest.mark.parametrize(
    ("value", "printed"),
    [(True, "true"), (False, "false"), (None, "''"), (0.1, "0.1"), (-1.0, "-1.0"), (7, "7"), ([], ""), (("a b", 1), "'a b' 1")],
)
def test_how_values_that_are_no_text_are_printed(value: Any, printed: str) -> None:
    assert text_of(rendered("x{{ options.value }}", {"value": value})) == f"x{printed}"


@pytest.mark.parametrize(
    ("template", "line", "words"),
    [
        ("a\n{{ nothing }}\n", 2, "'nothing' is undefined"),
        ("a\n\n{{ options.nothing }}\n", 3, "has no attribute 'nothing'"),
        ("{% if host_vars.nowhere %}x{% endif %}", 1, "expected 'nowhere' in vars of gpu2, found none"),
        ("a\n{{ host_vars['nowhere'] }}", 2, "expected 'nowhere' in vars of gpu2, found none"),
        ("{{ host_vars.host }}", 1, "expected 'host' in vars of gpu2, found none"),
        ("a\n{% if %}\n", 2, "Expected an expression"),
        ("a\nb\n{{ 'x' \n", 3, ""),
        ("{% endfor %}", 1, "endfor"),
        ("a\n{{ ''.__class__ }}", 2, "unsafe"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("{{ refuse.__globals__ }}", 1, "unsafe"),
        ("{{ refuse.__code__ }}", 1, "unsafe"),
        ("{{ self.__init__ }}", 1, ""),
        ("{{ options.update({'a': 1}) }}", 1, "unsafe"),
        ("{{ addresses.append(1) }}", 1, "unsafe"),
        ("{{ lipsum() }}", 1, "'lipsum' is undefined"),
        ("{{ ''|attr('__class__') }}", 1, "unsafe"),
        ("{{ '{0.__class__}'.format(1) }}", 1, "unsafe"),
        ("{{ 1 / 0 }}", 1, "division by zero"),
        ("{{ {}['x'] }}", 1, "no attribute 'x'"),
        ("{{ '%d' % 'x' }}", 1, ""),
        ("a\n{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", 2, "recursion"),
        ("a\n{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", 2, "iterations over all loops"),
        ("a\n{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", 2, "up to 1000000 iterations"),
        ("{% for a in range(900000) %}0123456789{% endfor %}", None, "up to 1048576 characters"),
        ("a\n{{ 'x' * 10000000000 }}", 2, "product of up to 1048576 items"),
        ("{{ [0] * 10000000000 }}", 1, "product of up to 1048576 items"),
        ("{{ 9 ** 100000000 }}", 1, "power of at most 1024 bits"),
        ("{% include '../secret' %}", 1, "../secret"),
        ("{% include '/etc/passwd' %}", 1, "/etc/passwd"),
        ("{% import 'os' as os %}", 1, "os"),
        ("a\n{{ options.cr }}", None, "carriage return"),
        ("a\0b", None, "NUL"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_is_an_error_with_file_and_line(template: str, line: int | None, words: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        rendered(template, {"value": 1, "cr": "a\rb"})
    assert time.monotonic() - begin < 5
    expected = "templates/echo/launch.sh.j2" + (f":{line}" if line else "")
    assert (caught.value.kind, caught.value.where) == ("template_error", expected)
    assert words in caught.value.message and caught.value.exit_code == 2


@pytest.mark.parametrize(
    "line",
    [
        "export ORCH_RUN_ID=mine",
        "ORCH_RUN_ID=mine python x.py",
        "env -u ORCH_NODE_RANK python x.py",
        "unset RANK ORCH_RUN_ID",
        "export -n ORCH_RUN_ID",
        "mpirun -x ORCH_RUN_ID=mine true",
    ],
)
def test_a_script_that_changes_the_identity_of_its_run_is_refused(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(f"#!/bin/bash\n# ORCH_RUN_IDX=1\n{line}\n", {})
    assert (caught.value.kind, caught.value.exit_code) == ("template_error", 2)
    assert caught.value.where == "templates/echo/launch.sh.j2:3" and "by which orch finds the processes" in caught.value.message


@pytest.mark.parametrize("line", ["mpirun -x ORCH_RUN_ID true", 'echo "$ORCH_RUN_ID"', "# ORCH_RUN_ID=x", "export TORCH_X=1"])
def test_a_script_may_read_and_pass_on_the_identity_of_its_run(line: str) -> None:
    assert line in text_of(rendered(f"{line}\n", {}))


def test_an_error_in_an_included_template_names_that_template() -> None:
    with pytest.raises(ConfigError) as caught:
        rendered("a\n{% include 'part.j2' %}", {}, part_j2="b\nc\n{{ nothing }}")
    assert caught.value.where == "templates/echo/part.j2:3"
    with pytest.raises(ConfigError) as caught:
        rendered("a\n{% include 'part.j2' %}", {}, part_j2="b\n{% if %}")
    assert caught.value.where == "templates/echo/part.j2:2"


def test_line_ends_of_another_system_do_not_reach_a_node() -> None:
    assert text_of(rendered("a\r\nb\r\n", {})) == "a\nb\n"


def test_a_template_can_refuse_a_combination_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match=r"--gpus: echo: expected 1") as caught:
        rendered("{{ refuse('--gpus', 'expected 1') }}", {})
    assert caught.value.kind == "config_invalid"


def test_no_template_of_ours_switches_quoting_off() -> None:
    # `raw` blocks and `safe` are the two ways around it; who adds one has to change this number and say why.
    texts = [path.read_text() for folder in frameworks().values() for path in folder.glob("*.j2")]
    assert texts and sum(text.count("% raw") + text.count("|safe") + text.count("| safe") for text in texts) == 0


def test_what_is_the_same_on_several_nodes_is_shown_once() -> None:
    plan = rendered("{{ node.node_rank // 2 }}", {}, nodes=4)
    assert [(hosts, file.path) for hosts, file in folded(plan.nodes)] == [
        (("gpu2", "gpu3", "gpu4", "gpu5"), "env.sh"), (("gpu2", "gpu3"), "launch.sh"), (("gpu4", "gpu5"), "launch.sh"),
    ]  # fmt: skip


def test_modes_and_paths_of_what_is_sent() -> None:
    files = rendered("x", {}).nodes[0].files
    assert [(file.path, oct(file.mode)) for file in files] == [("env.sh", "0o600"), ("launch.sh", "0o700")]
    assert payload_path("a.py", "abc") == "payload/abc/a.py"


MINIMAL = """\
title: a user's own
models: {resnet50: {}}
dtypes: {cpu: {fp32: float}}
loaders: [synthetic]
defaults: {batch_size: 1, dtype: fp32, loader: synthetic, steps: 3, warmup_steps: 1, timeout_s: 9, repeats: 1}
files: [{template: launch.sh.j2, path: launch.sh}]
probe: print('{}')
log: {files: [rank-0.out], patterns: ['^(?P<step>[0-9]+) (?P<step_time_s>[0-9.]+)$']}
"""


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_folder_is_a_framework_without_registration(tmp_path: Path) -> None:
    write(tmp_path / "mine", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    write(tmp_path / "no-framework", readme__txt="x")
    assert set(frameworks(tmp_path)) == {"mine"} | set(frameworks())
    folder = open_framework("mine", tmp_path)
    assert (folder.framework.name, folder.sources) == ("mine", {"launch.sh.j2": "echo\n"})
    assert list(folder.payload) == ["rank_wrapper.py"]


def with_payload(folder: Path, payload: str) -> FrameworkFolder:
    write(
        folder,
        framework__yaml=f"{MINIMAL}payload: {payload}\n",
        launch__sh__j2="exec {{ payload['train.py'] }} {{ rank_wrapper }}\n",
    )
    return open_framework(folder.name, folder.parent)


def test_a_payload_is_one_set_of_files_and_of_all_files_below_folders(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write(mine / "models" / "deep", net__py="n = 1\n")
    write(mine / "models" / "__pycache__", net__pyc="compiled")
    (mine / "models" / "__init__.py").write_text("")
    write(mine, train__py="import models\n")
    folder = with_payload(mine, "[train.py, models/, trainer.py]")
    assert set(folder.payload) == {"train.py", "models/__init__.py", "models/deep/net.py", "trainer.py", "rank_wrapper.py"}
    assert folder.payload["models/deep/net.py"] == b"n = 1\n" and b"def " in folder.payload["trainer.py"]
    spec = RunSpec("mine", "resnet50", 1, 1, "cpu", 1, "fp32", "synthetic", 3, 1, 9.0, {})
    host = Host("a", "10.0.0.1", slots=1)
    placement = place(spec, [host], 20000)
    plan = render(
        folder.framework, folder.sources, spec, placement, {"a": host}, run_id="r", repeat=1, payload=folder.payload_digests
    )
    where = f"../../../../payload/{folder.payload_digest}"
    assert text_of(plan) == f"exec {where}/train.py {where}/rank_wrapper.py\n"
    before = folder.payload_digest, folder.framework.digest
    write(mine / "models" / "__pycache__", net__pyc="compiled again")
    folder = with_payload(mine, "[train.py, models/, trainer.py]")
    assert (folder.payload_digest, folder.framework.digest) == before
    (mine / "models" / "deep" / "net.py").rename(mine / "models" / "net.py")
    assert with_payload(mine, "[train.py, models/, trainer.py]").payload_digest != before[0]


def test_a_shell_computes_the_digest_of_a_set_as_we_do(tmp_path: Path) -> None:
    folder = open_framework("pytorch")
    for name, content in folder.payload.items():
        (tmp_path / name).write_bytes(content)
    script = "LC_ALL=C; export LC_ALL; sha256sum -- * | sha256sum"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == f"{folder.payload_digest}  -\n"
    assert doctest.testmod(framework_module).failed == 0


def _plant(mine: Path, what: str) -> None:
    models = mine / "models"
    models.mkdir(parents=True)
    (models / "net.py").write_text("")
    (mine / "train.py").write_text("")
    {
        "link": lambda: (models / "etc").symlink_to("/etc"),
        "link to a neighbour": lambda: (models / "same.py").symlink_to("net.py"),
        "broken link": lambda: (models / "gone.py").symlink_to("nowhere"),
        "linked file": lambda: (mine / "train.py").unlink() or (mine / "train.py").symlink_to("models/net.py"),
        "linked folder": lambda: (mine / "also").symlink_to("models"),
        "pipe": lambda: os.mkfifo(models / "pipe"),
        "space": lambda: (models / "net copy.py").write_text(""),
        "hidden": lambda: (models / ".git").mkdir(),
        "line": lambda: (models / "a\nb.py").write_text(""),
        "deep": lambda: (models / ("x" * 100) / ("y" * 100)).mkdir(parents=True),
        "many": lambda: [(models / f"f{number}.py").touch() for number in range(256)],
        "large": lambda: os.truncate(models / "net.py", (1 << 24) + 1),
        "": lambda: None,
    }[what]()  # fmt: skip


@pytest.mark.parametrize(
    ("plant", "payload", "where", "words"),
    [
        ("link", "[models/]", "/models/etc: ", "expected a file or a folder, got a symbolic link"),
        ("link to a neighbour", "[models/]", "/models/same.py: ", "got a symbolic link"),
        ("broken link", "[models/]", "/models/gone.py: ", "got a symbolic link"),
        ("linked file", "[train.py]", "/train.py: ", "got a symbolic link"),
        ("linked folder", "[also/]", "/also: ", "got a symbolic link"),
        ("linked folder", "[also/net.py]", "/also: ", "got a symbolic link"),
        ("pipe", "[models/]", "/models/pipe: ", "got a pipe, socket or device"),
        ("space", "[models/]", "/models/net copy.py: ", "letters, digits, dots"),
        ("hidden", "[models/]", "/models/.git: ", "letters, digits, dots"),
        ("line", "[models/]", "/models/a", "'models/a\\nb.py'"),
        ("deep", "[models/]", "/models/xxx", "up to 200 letters"),
        ("many", "[models/]", "/framework.yaml: payload: ", "expected up to 256 files of 16 MiB together"),
        ("large", "[models/]", "/framework.yaml: payload: ", "models/net.py exceeds that"),
        ("", "[models]", "/models: ", "write models/ to send all files below it"),
        ("", "[train.py/]", "/train.py: ", "remove the slash after the name"),
        ("", "[absent/]", ": ", "expected a payload folder absent/, found none"),
        ("", "[../mine/train.py]", "/framework.yaml:9: ", "expected a file such as train.py, or a folder such as models/"),
        ("", "[/etc/passwd]", "/framework.yaml:9: ", "relative to the framework's folder, got '/etc/passwd'"),
        ("", "[models//net.py]", "/framework.yaml:9: ", "relative to the framework's folder"),
        ("", "['a b.py']", "/framework.yaml:9: ", "relative to the framework's folder"),
        ("", "[./]", "/framework.yaml:9: ", "relative to the framework's folder"),
        ("", "[rank_wrapper.py]", "/framework.yaml:9: ", "orch's rank wrapper has this one"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_with_its_place(
    tmp_path: Path, plant: str, payload: str, where: str, words: str
) -> None:
    _plant(tmp_path / "mine", plant)
    with pytest.raises(OrchError) as caught:
        with_payload(tmp_path / "mine", payload)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith(f"{tmp_path}/mine{where}") and words in str(caught.value), str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize(("closed", "mode"), [("models", 0o700), ("models", 0o744), ("models/net.py", 0o600)])
def test_a_payload_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, mode: int
) -> None:
    _plant(tmp_path / "mine", "")
    with_payload(tmp_path / "mine", "[models/]")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    (tmp_path / "mine" / closed).chmod(mode)
    monkeypatch.chdir(tmp_path)  # the folders above it are closed to others
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=r"^mine/models(/net\.py)?: cannot be read: Permission denied"):
            library._payload_files(["models/"], Path("mine"))
    finally:
        os.seteuid(0)


def test_a_folder_of_the_users_own_wins_over_one_of_ours(tmp_path: Path) -> None:
    write(tmp_path / "simulated", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    assert open_framework("simulated", tmp_path).framework.title == "a user's own"


def test_the_digest_of_a_folder_changes_with_every_byte_in_it(tmp_path: Path) -> None:
    write(tmp_path / "mine", framework__yaml=MINIMAL, launch__sh__j2="echo\n")
    before = open_framework("mine", tmp_path).framework.digest
    write(tmp_path / "mine", launch__sh__j2="echo \n")
    assert open_framework("mine", tmp_path).framework.digest != before


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("title: a user's own\n", "", "/framework.yaml:1", "title: field required, got nothing"),
        ("title: a user's own", "titel: x\ntitle: x", "/framework.yaml:1", "titel: extra inputs are not permitted"),
        ("loaders: [synthetic]", "loaders: synthetic", "/framework.yaml:4", "loaders: input should be a valid list"),
        ("path: launch.sh}", "path: ../launch.sh}", "/framework.yaml:6", "files.0.path"),
        ("path: launch.sh}", "path: launch.sh, mode: '0800'}", "/framework.yaml:6", "files.0.mode"),
        ("(?P<step>[0-9]+)", "(?P<step>[0-9]+", "/framework.yaml:8", "a regular expression"),
        ("(?P<step>", "(?P<stop>", "/framework.yaml:8", "with the group step and one of"),
        ("launch.sh.j2", "absent.sh.j2", "/framework.yaml: files", "expected a template absent.sh.j2, found none"),
        ("probe: print('{}')", "probe: x\npayload: [absent.py]", ": ", "expected a payload file absent.py"),
        ("title: a user's own", "title: a\ntitle: b", "/framework.yaml:2", "title"),
        ("title: a user's own", "title: a\nenv: {ORCH_RUN_ID: x}", "/framework.yaml:2", "does not begin with ORCH_"),
        ("title: a user's own", "title: a\ntunes: [{env: [ORCH_X], values: [1]}]", "/framework.yaml:2", "got ORCH_X"),
        ("title: a user's own", "\ttitle: a", "/framework.yaml:1", ""),
    ],
)  # fmt: skip
def test_a_fault_in_a_framework_file_is_named_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, where: str, words: str
) -> None:
    assert old in MINIMAL
    write(tmp_path / "mine", framework__yaml=MINIMAL.replace(old, new), launch__sh__j2="echo\n")
    with pytest.raises(OrchError) as caught:
        open_framework("mine", tmp_path)
    assert caught.value.exit_code == 2
    assert f"{tmp_path}/mine{where}" in str(caught.value) and words in str(caught.value)


def test_an_unknown_framework_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        open_framework("pytorh")
    assert str(caught.value) == (
        f"--framework: no framework 'pytorh'. available: {', '.join(frameworks())}; did you mean 'pytorch'?"
    )
