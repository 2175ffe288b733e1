"""A folder tried on machines that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan.folders import frameworks, open_framework, read_folder
from orchestrator.plan.trial import (
    find_refusal,
    read_variables,
    syntax_errors,
    trials,
    unread_options,
)
from tests.support.own_folders import WHOLE, folder_of


@pytest.mark.parametrize("name", frameworks())
def test_every_shipped_folder_renders_and_reads_all_its_options(name: str) -> None:
    folder = read_folder(frameworks()[name])
    tried = list(trials(folder))
    assert [str(trial.error) for trial in tried if trial.error] == []
    assert any(trial.files for trial in tried) and unread_options(folder) == ()


def test_every_shape_type_and_choice_is_tried(tmp_path: Path) -> None:
    tried = list(trials(read_folder(folder_of(tmp_path / "mlp", WHOLE))))
    assert [trial.name for trial in tried] == [
        "1n1g cpu fp32", "1n2g cpu fp32", "2n1g cpu fp32", "2n2g cpu fp32", "2n2g cpu fp32 mode=slow",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"options.sizes": "100"}, "--set sizes: gemm: expected multiples of 16"),
        (
            {"steps": 2, "warmup_steps": 2},
            "--steps: expected more steps than the 2 warm-up steps, got 2",
        ),
        ({"steps": 2, "warmup_steps": 2, "nodes": 10**9}, "--steps: expected more steps"),
        ({"nodes": 10**9, "gpus": 10**9}, ""),
        ({"dtype": "bf16", "nodes": 2}, ""),
    ],
)
def test_a_configuration_is_refused_if_it_is_possible_on_no_hosts(
    choice: dict[str, object], message: str
) -> None:
    error = find_refusal(open_framework("gemm"), "gemm", "cpu", choice, (3, 2))
    assert str(error or "").startswith(message) and bool(error) == bool(message)


@pytest.mark.parametrize(
    "launch", ["{{ refuse('vars.disk', 'too small') }}\n", "{{ optons.width }}\n"]
)
def test_what_is_wrong_with_hosts_or_templates_is_not_the_fault_of_a_choice(
    launch: str, tmp_path: Path
) -> None:
    assert (
        find_refusal(
            read_folder(folder_of(tmp_path / "mlp", WHOLE, launch)), "mlp", "cpu", {}, (3, 2)
        )
        is None
    )


def test_one_shape_that_is_possible_is_enough_unless_another_is_chosen() -> None:
    folder = open_framework("collectives")
    assert find_refusal(folder, "send_recv", "cpu", {}, (1, 1)) is None
    assert "2 or more ranks" in str(
        find_refusal(folder, "send_recv", "cpu", {"nodes": 1, "gpus": 1}, (3, 2))
    )
    assert "no model 'foo'" in str(find_refusal(folder, "foo", "cpu", {}, (3, 2)))
    assert find_refusal(open_framework("host_device"), "host_device", "cpu", {}, (3, 2)) is None


def test_an_error_of_one_configuration_and_a_refusal_are_told_apart(tmp_path: Path) -> None:
    launch = "{% if spec.nodes > 1 %}{{ optons.width }}{% elif node.nproc > 1 %}{{ refuse('--gpus', 'one only') }}{% endif %}\n"
    tried = list(trials(read_folder(folder_of(tmp_path / "mlp", WHOLE, launch))))
    assert [trial.refused for trial in tried if trial.refused] == ["--gpus: mlp: one only"]
    errors = {str(trial.error) for trial in tried if trial.error}
    assert (
        len(errors) == 1
        and "launch.sh.j2:1: expected a name that a template sees, got 'optons'" in errors.pop()
    )


@pytest.mark.parametrize(
    ("launch", "unread"),
    [
        ("{{ options.width }}", ("mode",)),
        ("{{ options['width'] }} {{ options.mode }}", ()),
        ("{% for name in options %}{{ name }}{% endfor %}", ()),
        ("nothing", ("width", "mode")),
    ],
)
def test_an_option_that_no_template_reads_is_found(
    tmp_path: Path, launch: str, unread: tuple[str, ...]
) -> None:
    assert unread_options(read_folder(folder_of(tmp_path / "mlp", WHOLE, launch))) == unread


def test_host_variables_that_templates_read_are_found_and_made_up(tmp_path: Path) -> None:
    folder = read_folder(
        folder_of(tmp_path / "mlp", WHOLE, "{{ host_vars.tool }} {{ host_vars['data_dir'] }}\n")
    )
    assert read_variables(folder) == ("data_dir", "tool")
    assert next(trials(folder)).files[1][1].content == "/opt/tool /data\n"


def test_the_syntax_error_of_every_template_is_named() -> None:
    errors = syntax_errors({"a.j2": "x\n{% if x %}", "b.j2": "fine", "c.j2": "{{ a b }}"}, "mine")
    assert [error.where for error in errors] == ["mine/a.j2:2", "mine/c.j2:1"]
