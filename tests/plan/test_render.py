"""Texts for nodes: every value arrives unchanged, and a template gets at nothing but the values
that it is given.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.devices.vendor import show_devices
from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.plan import sandbox
from orchestrator.plan.environment import SETUP_FAILED, env_file
from orchestrator.plan.folders import frameworks
from orchestrator.plan.framework import payload_path
from orchestrator.plan.placement import place
from orchestrator.plan.render import (
    NodePlan,
    Plan,
    RenderedFile,
    fold_files,
    render,
    without_secrets,
)
from orchestrator.plan.sandbox import command
from orchestrator.plan.spec import RunSpec
from tests.support.examples import examples
from tests.support.judge import LIMIT_S
from tests.support.rendering import FRAMEWORK, rendered

# What a shell, YAML or JSON could misread. A NUL cannot be in a file name or an argument, a lone
# surrogate in no file at all.
TEXTS = st.text(st.characters(exclude_characters="\0\r", exclude_categories=("Cs",)), max_size=60)
ODD = [
    "",
    " ",
    "-n",
    "a b",
    "$HOME",
    "$(id)",
    "`id`",
    "';id;'",
    '"',
    "\\",
    "a\nb",
    "a\n",
    "*",
    "~",
    "ünï",
    "!!",
    "\x1b[2J",
]
ODD += ["x" * 4096, "~/", "~/a b"]
FAST = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def text_of(plan: Plan) -> str:
    return plan.nodes[0].files[-1].content


def words_of(script: str, folder: Path) -> list[str]:
    """Run a script and return the words that its ``printf '%s\\0'`` got."""
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, timeout=LIMIT_S, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


def with_examples(function: Any) -> Any:
    for text in ODD:
        function = example(text)(function)
    return function


@with_examples
@given(TEXTS)
@FAST
def test_a_value_reaches_the_program_unchanged_through_a_shell_script(
    tmp_path: Path, value: str
) -> None:
    template = "printf '%s\\0' {{ options.value }} --flag={{ host_vars.thing }} {{ options.several }} \"$PWD\"\n"
    script = text_of(rendered(template, {"value": value, "several": [value, "x", value]}))
    # Of the inventory's values alone, one that begins with ~/ is a path in the home of the node.
    thing = f"{Path.home()}/{value[2:]}" if value.startswith("~/") else value
    assert words_of(script, tmp_path) == [
        value,
        f"--flag={thing}",
        value,
        "x",
        value,
        str(tmp_path),
    ]


def test_references_in_search_paths_are_expanded_on_the_node_and_in_nothing_else() -> None:
    values = {
        "PATH": "/x:$PATH", "LD_LIBRARY_PATH": "${BASE}/lib it's:/$(id):`id`:$BASE:$1:$", "MISSING_PATH": "/m:$NOT_SET",
        "PASSWORD": "pa$BASE", "TWICE_PATH": "$BASE$BASE",
    }  # fmt: skip
    script = "set -euo pipefail\n" + env_file(FRAMEWORK, Host("n", "10.0.0.1", env=values), {})
    script += "".join(f'printf "%s\\0" "${name}"\n' for name in values)
    variables = {"PATH": "/bin", "BASE": "/b  b"}
    done = subprocess.run(
        ["bash", "-c", script],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.split("\0")[:-1] == [
        "/x:/bin", "/b  b/lib it's:/$(id):`id`:/b  b:$1:$", "/m:", "pa$BASE", "/b  b/b  b",
    ], done.stderr  # fmt: skip


def environment_of(script: str, name: str) -> subprocess.CompletedProcess[str]:
    """Execute a script as launch.sh does, then print a variable and the options of the shell."""
    text = f'set -euo pipefail\n{script}printf \'%s|%s\' "${name}" "$-"'
    variables = {"PATH": "/bin:/usr/bin"}
    return subprocess.run(
        ["bash", "-c", text],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_setup_lines_run_first_in_the_shell_of_the_run_and_without_its_strictness() -> None:
    lines = [
        "export LD_LIBRARY_PATH=/m$UNSET",
        "f() { false; true; }; f",
        "yes | head -c 99 >/dev/null",
        "NCCL_ALGO=Tree\nexport NCCL_ALGO\n",
    ]
    host = Host(
        "n",
        "10.0.0.1",
        env={"LD_LIBRARY_PATH": "/x:$LD_LIBRARY_PATH", "NCCL_ALGO": "Ring"},
        vars={"setup": lines},
    )
    script = env_file(replace(FRAMEWORK, setup=("export LATER=$NCCL_ALGO",)), host, {})
    done = {
        name: environment_of(script, name).stdout
        for name in ("LD_LIBRARY_PATH", "NCCL_ALGO", "LATER")
    }
    assert {name: value.split("|")[0] for name, value in done.items()} == {
        "LD_LIBRARY_PATH": "/x:/m", "NCCL_ALGO": "Ring", "LATER": "Tree",
    }  # fmt: skip
    assert all({"e", "u"} <= set(value.split("|")[1]) for value in done.values())
    assert environment_of(f"{script}false | true || LATER=pipefail\n", "LATER").stdout.startswith(
        "pipefail"
    )


def test_a_setup_line_that_fails_ends_the_run_with_its_words() -> None:
    host = Host("n", "10.0.0.1", vars={"setup": ["true", "cd '/no such'  # it's", "echo after"]})
    done = environment_of(env_file(FRAMEWORK, host, {}), "HOME")
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr.splitlines()[-1]
        == "setup: line 2 (cd '/no such' # it's) ended with exit code 1"
    )


def test_what_setup_lines_print_is_apart_from_what_the_program_prints(tmp_path: Path) -> None:
    log = tmp_path / "it's" / "setup.out"
    log.parent.mkdir()
    lines = [
        "echo rate=7; echo warned >&2",
        "f() { echo loaded; }; f; export A=b",
        "(sleep 0.1; echo late) &",
    ]
    host = Host("n", "10.0.0.1", vars={"setup": lines})
    done = environment_of(
        f"set -x\n{env_file(FRAMEWORK, host, {}, str(log))}f\nwait\nset +x\n", "A"
    )
    assert done.stdout.startswith("loaded\nb|") and "rate=7" not in done.stderr, done
    printed = [line for line in log.read_text().splitlines() if not line.startswith("+")]
    assert printed == ["rate=7", "warned", "loaded", "late"]


def test_a_setup_line_that_fails_is_named_after_its_last_words(tmp_path: Path) -> None:
    host = Host("n", "10.0.0.1", vars={"setup": ["echo one", "cd '/no such'", "echo after"]})
    done = environment_of(env_file(FRAMEWORK, host, {}, str(tmp_path / "setup.out")), "HOME")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    one, words, last = (tmp_path / "setup.out").read_text().splitlines()
    assert one == "one" and words.endswith("/no such: No such file or directory")
    assert last == f"{SETUP_FAILED}2 (cd '/no such') ended with exit code 1"


def test_setup_lines_whose_output_cannot_be_kept_end_the_run(tmp_path: Path) -> None:
    host = Host("n", "10.0.0.1", vars={"setup": "export A=b"})
    done = environment_of(env_file(FRAMEWORK, host, {}, str(tmp_path / "none" / "setup.out")), "A")
    assert (done.returncode, done.stdout) == (
        1,
        "",
    ) and "setup.out: No such file or directory" in done.stderr


def test_setup_lines_cannot_change_the_identity_of_a_run() -> None:
    host = Host("n", "10.0.0.1", gpus=1, vars={"setup": "unset ORCH_RUN_ID"})
    spec = RunSpec("echo", "resnet50", 1, 1, "cuda", 128, "fp32", "synthetic", 20, 5, 60.0, {})
    with pytest.raises(ConfigError) as caught:
        render(
            FRAMEWORK,
            {},
            spec,
            place(spec, [host], 20000),
            {"n": host},
            run_id="r",
            repeat=1,
            payload={},
        )
    assert "ORCH_RUN_ID" in caught.value.message and "host n" in caught.value.where


def test_a_secret_with_a_reference_is_not_shown_in_part() -> None:
    host = Host("n", "10.0.0.1", gpus=1, env={"TOKEN_PATH": "hush:$HOME/hush"})
    file = RenderedFile("env.sh", env_file(FRAMEWORK, host, {}), 0o600)
    plan = Plan("r", 1, None, None, {}, (NodePlan(None, (file,), ()),))  # type: ignore[arg-type]
    (shown,) = without_secrets(plan, Inventory("i", (host,)).redaction()).nodes
    assert (
        "hush" not in shown.files[0].content and "TOKEN_PATH=(not shown)" in shown.files[0].content
    )


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
    assert sandbox.render_text("t", {"t": "{{ python }}"}, "sh", context, folder="f") == words


@pytest.mark.parametrize("name", ["python", "runner_python"])
def test_an_interpreter_with_an_open_quote_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(Host("n", "10.0.0.1", vars={name: "'/opt/my env/python"}), name)
    assert (
        f"vars.{name} of host n" in caught.value.where
        and "no closing quotation" in caught.value.message
    )


@given(st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]{0,9}\Z"), TEXTS, max_size=4))
@FAST
def test_the_environment_of_a_host_reaches_the_program_unchanged(
    tmp_path: Path, values: dict[str, str]
) -> None:
    values = {f"MY_{name}_": value for name, value in values.items()}
    script = env_file(FRAMEWORK, Host("n", "10.0.0.1", env=values), {}) + "printf '%s\\0'"
    script += "".join(f' "${{{name}}}"' for name in values)
    assert words_of(script, tmp_path) == (list(values.values()) or [""])


def test_a_variable_of_the_experiment_wins_over_that_of_the_host_which_wins_over_the_framework(
    tmp_path: Path,
) -> None:
    host = Host("n", "10.0.0.1", env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    script = env_file(
        replace(FRAMEWORK, env={"NCCL_PROTO": "Simple", "A": "a"}), host, {"NCCL_ALGO": "Tree"}
    )
    assert words_of(script + "printf '%s\\0' $NCCL_ALGO $NCCL_PROTO $A", tmp_path) == [
        "Tree",
        "LL",
        "a",
    ]


def test_cuda_counts_devices_as_the_driver_does_if_nobody_says_otherwise(tmp_path: Path) -> None:
    def order(host: dict[str, str], chosen: dict[str, str]) -> list[str]:
        script = env_file(FRAMEWORK, Host("n", "10.0.0.1", env=host), chosen)
        return words_of(script + "printf '%s\\0' $CUDA_DEVICE_ORDER", tmp_path)

    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert [order({}, {}), order(fastest, {}), order({}, fastest)] == [
        ["PCI_BUS_ID"],
        ["FASTEST_FIRST"],
        ["FASTEST_FIRST"],
    ]


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
    [
        (True, "true"),
        (False, "false"),
        (None, "''"),
        (0.1, "0.1"),
        (-1.0, "-1.0"),
        (7, "7"),
        ([], ""),
        (("a b", 1), "'a b' 1"),
    ],
)
def test_how_values_that_are_no_text_are_printed(value: Any, printed: str) -> None:
    assert text_of(rendered("x{{ options.value }}", {"value": value})) == f"x{printed}"


@pytest.mark.parametrize(
    ("template", "line", "words"),
    [
        ("a\n{{ nothing }}\n", 2, "expected a name that a template sees, got 'nothing'"),
        ("a\n\n{{ options.nothing }}\n", 3, "expected a name in options, got 'nothing'"),
        ("{% if host_vars.nowhere %}x{% endif %}", 1, "expected 'nowhere' in vars of gpu2, found none"),
        ("a\n{{ host_vars['nowhere'] }}", 2, "expected 'nowhere' in vars of gpu2, found none"),
        ("{{ host_vars.host }}", 1, "expected 'host' in vars of gpu2, found none"),
        ("a\n{% if %}\n", 2, "expected an expression, got '%}'"),
        ("{{ spec model }}", 1, "expected '}}', got 'model'"),
        ("{% if true %}{% endfor %}", 1, "expected 'elif' or 'else' or 'endif', got 'endfor'"),
        ("{% if true %}", 1, "expected 'elif' or 'else' or 'endif', got the end"),
        ("{% fi %}", 1, "expected a statement such as if, for or set, got 'fi'"),
        ("{{ 1|upperr }}", 1, "expected a filter of Jinja2, got 'upperr'"),
        ("{{ & }}", 1, "expected an expression, got '&'"),
        ("a\nb\n{{ 'x' \n", 3, ""),
        ("{% endfor %}", 1, "endfor"),
        ("a\n{{ ''.__class__ }}", 2, "unsafe"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("{{ refuse.__globals__ }}", 1, "unsafe"),
        ("{{ refuse.__code__ }}", 1, "unsafe"),
        ("{{ self.__init__ }}", 1, ""),
        ("{{ options.update({'a': 1}) }}", 1, "unsafe"),
        ("{{ addresses.append(1) }}", 1, "unsafe"),
        ("{{ lipsum() }}", 1, "expected a name that a template sees, got 'lipsum'"),
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
def test_a_template_that_cannot_be_is_an_error_with_file_and_line(
    template: str, line: int | None, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        rendered(template, {"value": 1, "cr": "a\rb"})
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
    assert (
        caught.value.where == "templates/echo/launch.sh.j2:3"
        and "because orch identifies the processes" in caught.value.message
    )


@pytest.mark.parametrize(
    "line",
    ["mpirun -x ORCH_RUN_ID true", 'echo "$ORCH_RUN_ID"', "# ORCH_RUN_ID=x", "export TORCH_X=1"],
)
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
    # `raw` blocks and `safe` are the two ways around it; who adds one has to change this number and
    # say why.
    texts = [path.read_text() for folder in frameworks().values() for path in folder.glob("*.j2")]
    assert (
        texts
        and sum(text.count("% raw") + text.count("|safe") + text.count("| safe") for text in texts)
        == 0
    )


def test_what_is_the_same_on_several_nodes_is_shown_once() -> None:
    plan = rendered("{{ node.node_rank // 2 }}", {}, nodes=4)
    assert [(hosts, file.path) for hosts, file in fold_files(plan.nodes)] == [
        (("gpu2", "gpu3", "gpu4", "gpu5"), "env.sh"), (("gpu2", "gpu3"), "launch.sh"), (("gpu4", "gpu5"), "launch.sh"),
    ]  # fmt: skip


def test_modes_and_paths_of_what_is_sent() -> None:
    files = rendered("x", {}).nodes[0].files
    assert [(file.path, oct(file.mode)) for file in files] == [
        ("env.sh", "0o600"),
        ("launch.sh", "0o700"),
    ]
    assert payload_path("a.py", "abc") == "payload/abc/a.py"


@pytest.mark.parametrize(("driver", "seen"), [(".", "2,3 - -"), ("none", "7 0 1")])
def test_on_amds_driver_a_run_sees_its_devices_whatever_a_scheduler_has_set(
    tmp_path: Path, driver: str, seen: str
) -> None:
    text = show_devices("2,3").replace("/dev/kfd", str(tmp_path / driver))
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    script = (
        f"set -eu\n{text}"
        + 'echo "$HIP_VISIBLE_DEVICES ${ROCR_VISIBLE_DEVICES--} ${GPU_DEVICE_ORDINAL--}"'
    )
    variables = dict(zip(names, "701", strict=True))
    done = subprocess.run(
        ["bash", "-c", script],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == f"{seen}\n"
