"""Doubts that follow from the numbers, and bounds that nothing real exceeds."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.features.published.folders import read_published_files
from orchestrator.features.published.plausibility import find_doubts
from orchestrator.plan.folders import frameworks, open_framework
from orchestrator.results.numbers import physics
from orchestrator.results.numbers.peaks import DEVICES, MODELS, devices_in, link_in
from orchestrator.results.numbers.physics import SLACK, Finding, Measured, findings
from orchestrator.results.numbers.throughput import median

ROOT = Path(__file__).parents[3]
FIRST_WITH_METRICS = 8
DOUBTS = {
    (table, case): found
    for file in read_published_files().values()
    for table, cases in find_doubts(file).items()
    for case, found in cases.items()
}
H200, V100 = "NVIDIA H200 · pytorch 2.11", "8 × V100-SXM2-16GB"

Layer = tuple[int, int, int, int, int]
"""Width of the kernel, stride, channels in and out, pixels on a side of what it gets."""


def measured(
    shape: str, *speeds: float, batch_size: int = 128, model: str = "resnet50", **other: object
) -> Measured:
    nodes, gpus = (int(number) for number in shape[:-1].split("n"))
    return replace(Measured(nodes, gpus, batch_size, model, "fp16", speeds), **other)  # type: ignore[arg-type]


def kinds(found: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in found]


# Every published row that raises a doubt, and every other one does not.
FLAGGED = {
    **{(f"tf2_rn50_fp16_b{batch}", "2n8g"): ["first hop"] for batch in (128, 256, 320)},
    ("tf2_rn50_fp16_b320", "1n1g"): ["batch"],
    ("tf2_rn50_fp32_b128", "1n8g"): ["superlinear"],
    ("paddle_rn50_fp32_b128", "1n4g"): ["superlinear"],
    ("pytorch_rn50_native_j8", "1n8g"): ["slower"],
    ("pytorch_rn50_native_j48", "1n8g"): ["superlinear"],
    ("pytorch_rn50_dali_j48", "1n8g"): ["superlinear"],
    ("vgg16_fp32_b32", "2n8g"): ["first hop"],
    ("vgg16_amp_b32", "1n8g"): ["superlinear"],
    **{(f"vgg16_{mode}_b256", case): ["batch"] for mode in ("amp", "auto") for case in ("1n1g", "1n8g", "2n8g", "4n8g")},
    **{
        (f"tp{row}", "1n8g"): ["arithmetic"]
        for row in (
            "2019_horovod_fp32_b64", "2019_replicated_fp32_b64", "2019_replicated_fp16_b64", "2019_replicated_fp16_b128",
            "2019_replicated_fp16_b128_xla", "2020_horovod_fp32_b64", "2020_replicated_fp32_b64", "2020_replicated_fp32_b128",
            "2020_replicated_fp16_b128", "2020_replicated_fp16_b128_xla",
        )
    },
}  # fmt: skip


def test_these_published_rows_raise_a_doubt_and_no_others() -> None:
    assert {place: kinds(found) for place, found in DOUBTS.items()} == FLAGGED
    assert Counter(kind for found in FLAGGED.values() for kind in found) == {
        "arithmetic": 10, "batch": 9, "first hop": 4, "superlinear": 5, "slower": 1,
    }  # fmt: skip


def test_the_page_on_published_numbers_lists_every_doubt_in_its_words() -> None:
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    rows = sum(
        len(table.cells) for file in read_published_files().values() for table in file.tables
    )
    assert f"{len(DOUBTS)} of {rows} rows" in page
    told = [
        line
        for line in page.split("## What is doubtful")[1].split("\n## ")[0].splitlines()
        if line.startswith("| `")
    ]
    assert told == [
        f"| `{table}` | {case} | {one.text} |"
        for (table, case), found in DOUBTS.items()
        for one in found
    ]


def test_only_the_devices_that_a_document_mistook_are_exceeded() -> None:
    """AWS's p2 have K80s; the same rows are possible with the V100s that the document names beside."""
    for file in read_published_files().values():
        for name, cases in find_doubts(file).items():
            for found in cases.values():
                impossible = [one for one in found if one.text.startswith("impossible")]
                assert all(
                    "K80 (p2.16xlarge)" in one.text and name.startswith("tp20")
                    for one in impossible
                )


def test_ratios_of_medians_of_published_runs_stay_within_the_slack_in_95_of_100_cases() -> None:
    printed = json.loads(
        (ROOT / "tests" / "data" / "dlperf_printed.json").read_text(encoding="utf-8")
    )["blocks"]
    cells = [
        [speed for _, speed in case["runs"]]
        for block in printed
        for case in block["cases"].values()
    ]
    tables = [table for file in read_published_files().values() for table in file.tables]
    cells += [list(cell.speeds) for table in tables for cell in table.cells if cell.runs]
    chance = random.Random(0)

    def off() -> float:
        of, over = chance.choices(cells, k=2)
        again = [median(chance.choices(runs, k=5)) / median(runs) for runs in (of, over)]
        return abs(again[0] / again[1] - 1)

    draws = [off() for _ in range(20_000)]
    assert len(cells) == 113
    assert 0.94 < sum(each <= SLACK for each in draws) / len(draws) < 0.96


def test_real_benches_raise_no_doubt_but_the_one_that_sockets_made_slower() -> None:
    told, count = {}, 0
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        document = json.loads(path.read_text())
        names = ("minimum", "median", "maximum")
        if document["schema"] < FIRST_WITH_METRICS:
            names = ("min_speed", "median_speed", "max_speed")
        cells = {
            row["shape"]: Measured(
                row["nodes"], row["gpus"], row["batch_size"], row["model"], row["dtype"],
                tuple(row[name] for name in names), row["hardware"],
            )
            for row in document["rows"]
            if row.get("primary", True)
        }  # fmt: skip
        assert all(list(devices_in(cell.devices)) == ["H200"] for cell in cells.values())
        told |= {
            (path.stem, shape): kinds(findings(cell, cells.values()))
            for shape, cell in cells.items()
        }
        count += len(cells)
    assert count == len(told) >= 8
    assert {cell: found for cell, found in told.items() if found} == {
        ("2026-11-22-h200-2n1g-typed", "2n1g"): ["slower"]
    }


def resnet(
    blocks: tuple[int, ...], *, wide: bool, strides_in_3x3: bool
) -> tuple[list[Layer], float]:
    """Return the layers of a network of He et al., tables 1 and figure 5, and the values that reach
    its layers.
    """
    layers: list[Layer] = [(7, 2, 3, 64, 224)]
    kept, side, channels = 3 * 224**2, 56, 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        out = 4 * width if wide else width
        for block in range(count):
            stride = 2 if stage and not block else 1
            after = side // stride
            middle = side if strides_in_3x3 else after
            if wide:
                first: Layer = (1, side // middle, channels, width, side)
                layers += [
                    first,
                    (3, middle // after, width, width, middle),
                    (1, 1, width, out, after),
                ]
                kept += channels * middle**2 + width * middle**2 + width * after**2
            else:
                layers += [(3, stride, channels, width, side), (3, 1, width, width, after)]
                kept += channels * side**2 + width * after**2
            if channels != out or stride > 1:
                layers.append((1, stride, channels, out, side))
            side, channels = after, out
    return [*layers, (1, 1, channels, 1000, 1)], kept + channels


def vgg16() -> tuple[list[Layer], float]:
    """Return the layers of configuration D of Simonyan and Zisserman, and the values that reach
    them.
    """
    layers: list[Layer] = []
    side, channels = 224, 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append((3, 1, channels, width, side))
            channels = width
        side //= 2
    layers += [(1, 1, 512 * 7 * 7, 4096, 1), (1, 1, 4096, 4096, 1), (1, 1, 4096, 1000, 1)]
    return layers, sum(layer[2] * layer[4] ** 2 for layer in layers)


ARCHITECTURES = {
    "resnet18": resnet((2, 2, 2, 2), wide=False, strides_in_3x3=True),
    "resnet50": resnet((3, 4, 6, 3), wide=True, strides_in_3x3=False),
    "resnet50_v1.5": resnet((3, 4, 6, 3), wide=True, strides_in_3x3=True),
    "resnet101": resnet((3, 4, 23, 3), wide=True, strides_in_3x3=False),
    "resnet152": resnet((3, 8, 36, 3), wide=True, strides_in_3x3=False),
    "vgg16": vgg16(),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_takes_follows_from_its_layers(name: str) -> None:
    layers, kept = ARCHITECTURES[name]

    def least(layer: Layer) -> float:
        width, stride, channels, out, side = layer
        return (
            width**2
            * channels
            * out
            * (side // stride) ** 2
            * (64 / 324 if (width, stride) == (3, 1) else 1)
        )

    whole = 3 * sum(map(least, layers)) - least(layers[0])
    assert 0.999 * whole <= MODELS[name].multiply_adds <= whole
    assert 0.999 * kept <= MODELS[name].kept <= kept


def test_layers_make_the_multiply_adds_that_papers_print() -> None:
    def forward(name: str) -> float:
        return sum(
            width**2 * channels * out * (side // stride) ** 2
            for width, stride, channels, out, side in ARCHITECTURES[name][0]
        )

    printed = {
        "resnet18": 1.8e9,
        "resnet50": 3.8e9,
        "resnet101": 7.6e9,
        "resnet152": 11.3e9,
        "vgg16": 15.3e9,
    }
    assert {name: forward(name) for name in printed} == pytest.approx(printed, rel=0.02)


def test_the_folders_declare_the_same_parameters() -> None:
    declared = {
        (model, values["parameters"])
        for folder in frameworks()
        for model, values in open_framework(folder).framework.models.items()
        if values.get("parameters") and "transformer" not in values
    }
    assert declared == {(name, model.parameters) for name, model in MODELS.items()}


def test_a_speed_above_the_arithmetic_is_impossible() -> None:
    # 989.5 TFLOP/s and a tenth, over two operations for each of 7.002e9 multiply-adds
    below, above = measured("1n1g", 77_700, devices=H200), measured("1n1g", 77_800, devices=H200)
    assert findings(below, []) == ()
    (found,) = findings(above, [])
    assert (found.kind, found.text) == (
        "arithmetic",
        "impossible: the arithmetic of 1 × H200 allows at most 77724 samples/s",
    )
    assert found.beyond == pytest.approx(77_800 / 77_724, rel=1e-5)


def test_a_batch_of_one_is_bounded_by_moving_the_weights() -> None:
    # VGG16, one image: 138.4 M weights of 4 bytes and 9.1 M values of 2, less 6 MB of cache,
    # written and read at 990 GB/s
    step_s = 2 * (138_357_544 * 4 + 9.115e6 * 2 - 6e6) / (900e9 * 1.1)
    case = measured("1n1g", 1 / step_s * 1.001, batch_size=1, model="vgg16", devices=V100)
    assert kinds(findings(case, [])) == ["memory"]
    assert findings(replace(case, speeds=(1 / step_s * 0.999,)), []) == ()


def test_a_memory_whose_speed_nobody_knows_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    case = measured("1n1g", 1_000, batch_size=1, model="vgg16", devices=V100)
    assert kinds(findings(case, [])) == ["memory"]
    (known,) = devices_in(V100).values()
    unknown = {"V100": replace(known, memory_bytes_per_s=0)}
    monkeypatch.setattr(physics, "devices_in", lambda _: unknown)
    assert findings(case, []) == ()


def test_several_nodes_are_bounded_by_their_link_and_one_is_not() -> None:
    # 51 MB of 16-bit gradients over 12.5 GB/s: 4.09 ms a step of 4096 samples
    link = link_in("100 Gb/s InfiniBand, NCCL 2.7.3")
    assert kinds(findings(measured("4n8g", 1.01e6, link_bytes_per_s=link), [])) == ["interconnect"]
    assert findings(measured("4n8g", 1.00e6, link_bytes_per_s=link), []) == ()
    assert findings(measured("1n8g", 1.01e6, link_bytes_per_s=link), []) == ()


@pytest.mark.parametrize(
    "named", ["", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GB10", "NVIDIA L20", "cpu AMD EPYC"]
)
def test_an_unknown_device_has_no_bound(named: str) -> None:
    assert findings(measured("1n1g", 1e12, devices=named), []) == ()


def test_an_unknown_model_type_or_link_has_no_bound() -> None:
    cell = measured("4n8g", 1e12, devices=V100, link_bytes_per_s=12.5e9)
    assert kinds(findings(cell, [])) == ["arithmetic", "memory", "interconnect"]
    assert findings(replace(cell, model="mlp"), []) == ()
    assert kinds(findings(replace(cell, dtype="auto"), [])) == ["interconnect"]
    assert link_in("InfiniBand") is link_in("25 Gb/s Ethernet and 100 Gb/s InfiniBand") is None


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla T4", "T4"),
    ]
    + [(f"NVIDIA {device.name}", device.name) for device in DEVICES],
)
def test_a_device_is_known_by_what_nvidia_smi_calls_it(printed: str, name: str) -> None:
    assert list(devices_in(printed)) == [name]


@pytest.mark.parametrize(
    ("printed", "dtype", "tflops"),
    [
        ("Tesla P100-PCIE-16GB", "fp16", 18.7),
        ("Tesla P100-SXM2-16GB", "fp16", 21.2),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA A30", "tf32", 82),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA L4", "fp8", 242.5),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA H800", "bf16", 989.5),
        ("NVIDIA H800 PCIe", "bf16", 756.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "bf16", 503.8),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GB300", "fp8", 5000),
        ("AMD Instinct MI355X", "bf16", 2516.6),
    ],
)
def test_a_peak_is_that_of_the_data_sheet_without_sparsity(
    printed: str, dtype: str, tflops: float
) -> None:
    (device,) = devices_in(printed).values()
    assert (device.peak(dtype) or 0.0) / 1e12 == pytest.approx(tflops)


def test_one_odd_jump_is_told_once() -> None:
    cells = [
        measured(shape, speed)
        for shape, speed in (("1n1g", 100), ("1n4g", 300), ("1n8g", 700), ("2n8g", 1390))
    ]
    assert [kinds(findings(cell, cells)) for cell in cells] == [[], [], ["superlinear"], []]


def test_a_baseline_that_is_too_slow_is_told_at_every_size() -> None:
    cells = [
        measured(shape, speed) for shape, speed in (("1n1g", 100), ("1n4g", 415), ("1n8g", 828))
    ]
    told = [[finding.text for finding in findings(cell, cells)] for cell in cells]
    assert told[0] == [] and all(
        text.endswith("doubt 1n1g first") for texts in told[1:] for text in texts
    )
    assert list(map(len, told)) == [0, 1, 1]


def test_superlinear_is_judged_by_the_repeats_least_in_favour_of_it() -> None:
    one = measured("1n1g", 98, 100, 104)
    assert findings(measured("1n2g", 207, 230, 240), [one]) == ()
    assert (
        findings(measured("1n2g", 209, 230, 240), [one]) == ()
    )  # beyond all of the baseline, but the repeats are far apart
    (found,) = findings(measured("1n2g", 213, 230, 240), [one])
    assert (
        found.text
        == "superlinear: 2.30 times as fast as 1n1g on 2 times its ranks; doubt 1n1g first"
    )


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_perfect_scaling_is_rarely_called_superlinear_and_five_percent_more_nearly_always(
    repeats: int,
) -> None:
    chance, told = random.Random(4), {1.0: 0, 1.05: 0}
    for times in told:
        for _ in range(1000):
            one, two = (
                [100 * math.exp(chance.gauss(0, 0.01)) for _ in range(repeats)] for _ in range(2)
            )
            cell = measured("1n2g", *(2 * times * speed for speed in two))
            told[times] += kinds(findings(cell, [measured("1n1g", *one)])) == ["superlinear"]
    assert told[1.0] <= 30 and told[1.05] >= 880


def test_a_loss_between_nodes_that_grows_as_bandwidth_would_raises_no_doubt() -> None:
    """1024 samples a node: 0.1 s on one node, 0.14 on two, and on four 0.16 as the ring has it, or
    0.145.
    """
    one, two = measured("1n8g", 10240), measured("2n8g", 2048 / 0.14)
    assert findings(two, [one, measured("4n8g", 4096 / 0.16)]) == ()
    (found,) = findings(two, [one, measured("4n8g", 4096 / 0.145)])
    assert found.text == (
        "loses 40 ms per step against 1n8g, and 4n8g only 45 where a lack of bandwidth would cost 60: "
        "a cost per step that does not grow with nodes, or one of the three numbers is wrong"
    )
    assert (
        findings(two, [one, measured("4n8g", 4096 / 0.154)]) == ()
    )  # 4 % less than 160 ms may be noise of three numbers


speeds = st.lists(st.floats(1, 1e6), min_size=1, max_size=5).map(tuple)
sizes = st.sampled_from([(1, 1), (1, 2), (1, 8), (2, 8), (4, 8)])
made = st.builds(
    lambda size, batch, some: Measured(*size, batch, "resnet50", "fp32", some, V100, 12.5e9),
    sizes,
    st.sampled_from([32, 128]),
    speeds,
)


@given(made, st.lists(made, max_size=6), st.floats(1, 100))
def test_a_faster_number_never_loses_a_finding_of_being_too_fast(
    cell: Measured, peers: list[Measured], times: float
) -> None:
    too_fast = {"superlinear", "arithmetic", "memory", "interconnect"}
    before, after = (
        {
            finding.kind: finding.beyond
            for finding in findings(each, peers)
            if finding.kind in too_fast
        }
        for each in (cell, replace(cell, speeds=tuple(speed * times for speed in cell.speeds)))
    )
    assert all(after[kind] >= beyond * (1 - 1e-9) for kind, beyond in before.items())


@given(made, st.lists(made, max_size=6), st.floats(1, 100))
def test_a_slower_number_never_loses_a_finding_of_being_too_slow(
    cell: Measured, peers: list[Measured], times: float
) -> None:
    too_slow = {"slower", "batch", "first hop"}
    before, after = (
        {finding.kind for finding in findings(each, peers)} & too_slow
        for each in (cell, replace(cell, speeds=tuple(speed / times for speed in cell.speeds)))
    )
    assert before <= after


@given(made, st.lists(made, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_cells_changes_nothing(
    cell: Measured, peers: list[Measured], chance: random.Random
) -> None:
    shuffled = chance.sample(peers, len(peers))
    assert [(f.kind, f.beyond) for f in findings(cell, shuffled)] == [
        (f.kind, f.beyond) for f in findings(cell, peers)
    ]


@given(made, st.lists(made, max_size=6))
def test_every_finding_goes_beyond_its_bound(cell: Measured, peers: list[Measured]) -> None:
    assert all(finding.beyond > 1 for finding in findings(cell, peers))
