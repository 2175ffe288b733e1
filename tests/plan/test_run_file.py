"""Run files: one value or lists of every choice, a matrix with include and exclude, and refusals
with file, line and key.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, Faults
from orchestrator.options import OPTIONS
from orchestrator.plan.matrix import axis
from orchestrator.plan.run_file import RunFile, run_file_of
from orchestrator.plan.spec import RunSpec
from tests.plan.mill_benches import KEYS, OF_INCLUDE


def read(text: str) -> RunFile:
    return run_file_of(yamlfile.loads(text, "choices.yaml"))


def test_one_value_of_every_key() -> None:
    text = (
        "framework: mill\nnodes: 2\ngpus: 4\nbatch_size: 64\ndtype: fp16\nloader: native\nsteps: 40\nwarmup_steps: 0\n"
        "timeout_s: 12.5\nrepeats: 3\nladder: true\nlabel: before the update\n"
        "options: {image_size: 64, rate: 0.5, compile: true, note: on}\nenv: {NCCL_ALGO: Ring, NCCL_NTHREADS: 256}\n"
    )
    assert read(text) == RunFile(
        {
            "framework": "mill", "nodes": 2, "gpus": 4, "batch_size": 64, "dtype": "fp16", "loader": "native", "steps": 40,
            "warmup_steps": 0, "timeout_s": 12.5, "options.image_size": "64", "options.rate": "0.5", "options.compile": "True",
            "options.note": "on", "env.NCCL_ALGO": "Ring", "env.NCCL_NTHREADS": "256",
        },
        ladder=True, repeats=3, label="before the update",
    )  # fmt: skip
    assert read("shape: 4n8g") == RunFile({"nodes": 4, "gpus": 8})


def test_lists_of_every_choice_are_axes_and_the_shape_is_the_last() -> None:
    text = (
        "shape: [1n1g, 4x8]\nenv: {NCCL_ALGO: [null, Tree, 'Ring,Tree']}\noptions:\n  sizes: ['1,2', '3']\n  seed: [1, 2, 1]\n"
        "dtype: [fp32, fp16]\n"
    )
    found = read(text)
    assert found.lists == (
        axis("dtype", ["fp32", "fp16"]), axis("options.sizes", ["1,2", "3"]), axis("options.seed", ["1", "2"]),
        axis("env.NCCL_ALGO", [None, "Tree", "Ring,Tree"]), ({"nodes": 1, "gpus": 1}, {"nodes": 4, "gpus": 8}),
    )  # fmt: skip
    assert found.single == {}


def test_entries_of_include_and_exclude_have_the_form_of_the_file() -> None:
    found = read(
        "nodes: [1, 2]\noptions: {seed: [1, 2]}\n"
        "include:\n  - {nodes: 2, steps: 90, env: {NCCL_ALGO: Ring}}\n  - {shape: 4n8g}\n"
        "exclude:\n  - {nodes: 1, options: {seed: 2}}\n"
    )
    assert found.include == (
        {"nodes": 2, "steps": 90, "env.NCCL_ALGO": "Ring"},
        {"nodes": 4, "gpus": 8},
    )
    assert found.exclude == ({"nodes": 1, "options.seed": "2"},)


def test_the_place_of_a_value_is_known() -> None:
    found = read("dtype:\n  - fp32\n  - fp16\noptions: {seed: 5}\ninclude:\n  - {dtype: bf16}\n")
    assert found.places["dtype", "fp16"] == "choices.yaml:3: dtype[1]"
    assert found.places["options.seed", "5"] == "choices.yaml:4: options.seed"
    assert found.places["dtype", "bf16"] == "choices.yaml:6: include[0].dtype"


def test_every_key_is_a_choice_of_a_configuration_or_of_the_bench() -> None:
    """Else it would be accepted and ignored."""
    specs, files = ({each.name for each in fields(kind)} for kind in (RunSpec, RunFile))
    known = {"bench": files, **dict.fromkeys(("list", "run", "all_runs"), specs)}
    lost = {
        row.run_file.key or name
        for name, row in OPTIONS.items()
        if row.run_file and (row.run_file.key or name) not in known[row.run_file.place]
    }
    assert lost == {"shape", "global_batch"}  # of which nodes, gpus and batch_size are made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", f"choices.yaml:1: expected a mapping of choices. {KEYS}"),
        ("dtype: fp16\ncolour: red\n", f"choices.yaml:2: unknown key colour. {KEYS}"),
        ("dtype: fp16\nbatchsize: 8\n", f"choices.yaml:2: unknown key batchsize. {KEYS}; did you mean 'batch_size'?"),
        ("matrix: {nodes: [1, 2]}\n",
         "choices.yaml:1: unknown key matrix. write its lists as keys of the file, and include: and exclude: next to them"),
        ("batch_size: many\n", "choices.yaml:1: batch_size: expected a whole number, got 'many'"),
        ("batch_size: [8, many]\n", "choices.yaml:1: batch_size[1]: expected a whole number, got 'many'"),
        ("nodes: []\n", "choices.yaml:1: nodes: expected one value or a list of values, got an empty list"),
        ("nodes: [true]\n", "choices.yaml:1: nodes[0]: expected a whole number, got True"),
        ("dtype: 16\n", "choices.yaml:1: dtype: expected text, got 16"),
        ("loader: {a: 1}\n", "choices.yaml:1: loader: expected text, got {'a': 1}"),
        ("shape: 4-8\n", "choices.yaml:1: shape: expected shapes such as 1n1g,4n8g, got '4-8'"),
        ("shape: 1n1g,4n8g\n",
         "choices.yaml:1: shape: expected a shape such as 4n8g, got '1n1g,4n8g'. several are a list: [1n1g, 4n8g]"),
        ("shape: 1n1g\nnodes: 2\n",
         "choices.yaml:1: shape: expected shape alone, or ladder, or lists of nodes and gpus, got shape, nodes"),
        ("ladder: true\ngpus: [1, 2]\n",
         "choices.yaml:1: ladder: expected shape alone, or ladder, or lists of nodes and gpus, got ladder, gpus"),
        ("ladder: 3\n", "choices.yaml:1: ladder: expected true or false, got 3"),
        ("steps:\n", "choices.yaml:1: steps: expected a whole number, got None"),
        ("steps: [9, 8]\n", "choices.yaml:1: steps: expected a whole number, got [9, 8]"),
        ("warmup_steps: yes\n", "choices.yaml:1: warmup_steps: expected a whole number, got 'yes'"),
        ("timeout_s: soon\n", "choices.yaml:1: timeout_s: expected seconds above 0, got 'soon'"),
        ("timeout_s: true\n", "choices.yaml:1: timeout_s: expected seconds above 0, got True"),
        ("repeats: 0\n", "choices.yaml:1: repeats: expected a whole number ≥ 1, got 0"),
        ("repeats: true\n", "choices.yaml:1: repeats: expected a whole number, got True"),
        ('label: "a\\nb"\n', "choices.yaml:1: label: expected one line of at most 80 printable characters, got 'a\\nb'"),
        ("steps: 9\noptions: [1]\n", "choices.yaml:2: options: expected a mapping, got [1]"),
        ("options:\n", "choices.yaml:1: options: expected a mapping, got None"),
        ("options:\n  image_size: [64, [32]]\n",
         "choices.yaml:2: options.image_size[1]: expected a text, a number, true or false, got [32]"),
        ("options: {bucket_mb:}\n",
         "choices.yaml:1: options.bucket_mb: expected a text, a number, true or false, got None"),
        ("env: {NCCL_IB_DISABLE: true}\n",
         "choices.yaml:1: env.NCCL_IB_DISABLE: expected a text or a whole number, got True. put quotes around it"),
        ("env: {A-B: 1}\n",
         "choices.yaml:1: env.A-B: expected a variable name of letters, digits and '_', got 'A-B'"),
        ("env: {WORLD_SIZE: 2}\n", "choices.yaml:1: env.WORLD_SIZE: expected a variable that orch does not set itself, got "
                                   "WORLD_SIZE. use --nodes, --gpus or --shape"),
        ("include: {nodes: 1}\n", "choices.yaml:1: include: expected a list of mappings, got {'nodes': 1}"),
        ("include:\n  - 5\n", "choices.yaml:2: include[0]: expected a mapping of one or more values, got 5"),
        ("include:\n  - {nodes: [1, 2]}\n", "choices.yaml:2: include[0].nodes: expected a whole number, got [1, 2]"),
        ("include:\n  - {node: 1}\n", f"choices.yaml:2: unknown key node. {OF_INCLUDE}; did you mean 'nodes'?"),
        ("include:\n  - {repeats: 5}\n", f"choices.yaml:2: unknown key repeats. {OF_INCLUDE}"),
        ("nodes: [1, 2]\nexclude:\n  - {nodes: 4}\n",
         "choices.yaml:3: exclude[0].nodes: expected one of 1, 2, the values of nodes in this file, got 4"),
        ("dtype: [fp32, fp16]\nexclude:\n  - {dtype: fp61}\n",
         "choices.yaml:3: exclude[0].dtype: expected one of fp16, fp32, the values of dtype in this file, got 'fp61'. "
         "did you mean 'fp16'?"),
        ("nodes: [1, 2]\nbatch_size: 64\nexclude:\n  - {batch_size: 64}\n",
         "choices.yaml:4: exclude[0].batch_size: expected the name of a list in this file, got batch_size. "
         "the file's lists: nodes"),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_is_refused_with_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == message


def test_all_faults_of_a_file_are_reported_together() -> None:
    with pytest.raises(Faults) as caught:
        read("colour: red\nnodes: [1, two]\nexclude:\n  - {nodes: 3}\n")
    assert [fault.where for fault in caught.value.errors] == [
        "choices.yaml:1", "choices.yaml:2: nodes[1]", "choices.yaml:4: exclude[0].nodes",
    ]  # fmt: skip


def test_the_shape_of_an_entry_may_be_excluded_by_either_number() -> None:
    text = "shape: [1n1g, 2n8g]\nexclude:\n  - {nodes: 2}\n  - {shape: 1n1g}\n"
    assert read(text).exclude == ({"nodes": 2}, {"nodes": 1, "gpus": 1})
    assert read("ladder: true\nexclude:\n  - {nodes: 64}\n").exclude == ({"nodes": 64},)


def test_bounds_are_read_and_a_wrong_one_is_refused_where_it_is() -> None:
    read = run_file_of(yamlfile.loads("expect: [busbw >= 3, lat <= 2 size=4096]\n", "choices.yaml"))
    assert list(map(str, read.expect)) == ["busbw >= 3", "lat <= 2 size=4096"]
    with pytest.raises(
        ConfigError,
        match=r"choices.yaml:1: expect\[1\]: expected a bound such as busbw >= 350, got 'fast'",
    ):
        run_file_of(yamlfile.loads("expect: [busbw >= 3, fast]\n", "choices.yaml"))
