"""Published figures of language models: each follows from the others, or is named as one that does
not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, Faults
from orchestrator.features.published.folders import open_published, read_tables
from orchestrator.features.published.language import LanguageTable, Sizes, recompute_language
from orchestrator.features.published.language_plausibility import find_language_doubts
from orchestrator.plan.transformer import Transformer

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
FILES = {name: open_published(name, TEMPLATES / name) for name in ("llm_foundry", "megatron_lm")}
TABLES = {table.name: table for file in FILES.values() for table in file.language}
MPT, MEGATRON = FILES["llm_foundry"].language, FILES["megatron_lm"].language


def changed(table: LanguageTable, row: int, **figures: float) -> LanguageTable:
    """Return a table whose row has other figures."""
    records = list(table.records)
    records[row] = replace(records[row], figures={**records[row].figures, **figures})
    return replace(table, records=tuple(records))


def counts(tables: tuple[LanguageTable, ...]) -> dict[str, tuple[int, int]]:
    checks = [check for table in tables for check in recompute_language(table).checks]
    printed = Counter(check.what for check in checks)
    return {
        what: (sum(check.agrees for check in checks if check.what == what), printed[what])
        for what in printed
    }


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_figure_differs_that_is_not_declared(table: LanguageTable) -> None:
    check = recompute_language(table)
    assert check.checks and not check.undeclared and not check.unseen


def test_1726_of_1728_figures_of_216_rows_follow_from_the_others() -> None:
    assert sum(len(table.records) for table in MPT) == 216
    every = (216, 216)
    assert counts(MPT) == {
        "parameters": every,
        "global_batch": every,
        "global_batch_tokens": every,
        "tokens_per_s": every,
        "tokens_per_s_per_device": every,
        "tflops_per_device": (214, 216),
        "mfu": every,
        "hfu": every,
    }


def test_the_two_that_do_not_follow_are_tflops_that_were_computed_from_the_printed_mfu() -> None:
    odd = {text.partition(":")[0]: table for table in MPT for text in recompute_language(table).odd}
    assert set(odd) == {"mpt-7b, 8192 tokens, 8 GPUs, b3x4", "mpt-3b, 8192 tokens, 8 GPUs, b1x8"}
    for name, table in odd.items():
        (figures,) = (record.figures for record in table.records if record.name == name)
        assert (
            table.peak_tflops
            and int(figures["mfu"] * table.peak_tflops / 100) == figures["tflops_per_device"]
        )


def test_hfu_of_selective_recomputation_follows_from_mfu() -> None:
    assert counts(MEGATRON) == {"hfu": (4, 4)}
    wrong = tuple(replace(table, recomputed={}) for table in MEGATRON)
    assert counts(wrong)["hfu"][0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: replace(table, operations=replace(table.operations, attention=6)),
        lambda table: replace(table, operations=replace(table.operations, parameters=5)),
        lambda table: replace(table, counts_all=False),
        lambda table: replace(table, peak_tflops=(table.peak_tflops or 0) * 0.9995),
    ],
    ids=["half of attention", "5 N", "without embeddings", "989 TFLOP/s for 989.5"],
)
def test_with_another_convention_no_table_of_mfu_is_reproduced(
    wrong: Callable[[LanguageTable], LanguageTable],
) -> None:
    for table in MPT:
        agree, printed = counts((wrong(table),))["mfu"]
        assert agree < printed / 2, table.name


@pytest.mark.parametrize(
    "what",
    ["parameters", "global_batch", "tokens_per_s_per_device", "tflops_per_device", "mfu", "hfu"],
)
@pytest.mark.parametrize("table", MPT, ids=[table.name for table in MPT])
def test_a_figure_that_is_off_in_its_last_places_is_found(table: LanguageTable, what: str) -> None:
    unit = 10.0 ** -table.printing[what].places if what in table.printing else 1
    off = table
    for row, record in enumerate(table.records):
        off = changed(off, row, **{what: round(record.figures[what] + 2 * unit, 2)})
    named = [text.rpartition(f": {what} ")[0] for text in recompute_language(off).undeclared]
    assert set(named) >= {record.name for record in table.records}


# --- doubts


def doubts(*tables: LanguageTable) -> list[tuple[str, str, str]]:
    return [
        (name, row, finding.text)
        for name, rows in find_language_doubts(tables).items()
        for row, found in rows.items()
        for finding in found
    ]


def test_two_rows_of_the_published_tables_scale_implausibly() -> None:
    assert doubts(*MPT) == [
        (
            "h100_bf16",
            "mpt-760m, 2048 tokens, 16 GPUs, b24x1",
            "superlinear: 2.17 times as fast as 1n8g on 2 times its ranks; doubt 1n8g first",
        ),
        (
            "a100_40gb_bf16",
            "mpt-1b, 2048 tokens, 64 GPUs, b10x1",
            "superlinear: 2.44 times as fast as 4n8g on 2 times its ranks; doubt 4n8g first",
        ),
    ]
    assert doubts(*MEGATRON) == []


def test_seven_models_have_a_series_up_to_512_gpus_or_32() -> None:
    h100 = [record for table in MPT[:2] for record in table.records if record.seq_len == 2048]
    sizes = {
        model: {record.gpus for record in h100 if record.model == model}
        for model in {record.model for record in h100}
    }
    assert len(sizes) == 7
    assert {model for model, gpus in sizes.items() if 512 not in gpus} == {"mpt-760m"}


def test_fewer_micro_batches_excuse_a_larger_run_and_more_of_them_do_not() -> None:
    table = TABLES["h100_bf16"]
    row = next(
        number
        for number, record in enumerate(table.records)
        if record.name == "mpt-760m, 2048 tokens, 8 GPUs, b24x2"
    )
    records = list(table.records)
    records[row] = replace(records[row], micro_batches=1)
    assert any("mpt-760m" in name for _, name, _ in doubts(replace(table, records=tuple(records))))
    larger = next(
        number
        for number, record in enumerate(records)
        if record.name == "mpt-760m, 2048 tokens, 16 GPUs, b24x1"
    )
    records[row], records[larger] = table.records[row], replace(records[larger], micro_batches=4)
    assert not any(
        "mpt-760m" in name for _, name, _ in doubts(replace(table, records=tuple(records)))
    )


def test_the_peak_of_another_device_is_named() -> None:
    table = TABLES["a100_80gb_bf16"]
    found = doubts(replace(table, peak_tflops=989.5))
    assert ("the MFU is a share of 989.5 TFLOP/s, the dense peak of A100 for bf16 is 312") in {
        text for *_, text in found
    }
    implied = [
        text
        for *_, text in found
        if "follows from tokens/s with a peak of 312" in text and "A100 for bf16" in text
    ]
    assert len(implied) == len(table.records)


def test_hfu_above_mfu_without_recomputation_and_below_it_are_doubted() -> None:
    table = TABLES["h100_bf16"]
    row = next(
        number for number, record in enumerate(table.records) if record.recomputation == "none"
    )
    mfu = table.records[row].figures["mfu"]
    above, below = changed(table, row, hfu=mfu * 4 / 3), changed(table, row, hfu=mfu / 2)
    assert [
        text
        for _, name, text in doubts(above)
        if name == table.records[row].name and "nothing is recomputed" in text
    ]
    assert [
        text
        for _, name, text in doubts(below)
        if name == table.records[row].name and "is less than MFU" in text
    ]


def test_more_than_the_device_can_do_is_impossible() -> None:
    table = TABLES["h100_bf16"]
    figures = table.records[0].figures
    fast = changed(
        table,
        0,
        mfu=figures["mfu"] * 3,
        tokens_per_s_per_device=figures["tokens_per_s_per_device"] * 3,
    )
    texts = [text for _, name, text in doubts(fast) if name == table.records[0].name]
    assert any("is more than the device can do" in text for text in texts)
    assert any(
        text.startswith("impossible: the arithmetic of H100 allows at most") for text in texts
    )


# --- the format, and the command


def written(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    content = json.loads((TEMPLATES / "megatron_lm" / "published.json").read_text("utf-8"))
    change(content["language_models"])
    path = tmp_path / "published.json"
    path.write_text(json.dumps(content, indent=1), "utf-8")
    return path


def row_of(language: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = language["tables"]["a100_80gb"]["records"][1]
    return row


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "model": (
        lambda file: row_of(file).update(model="gpt-175"),
        "records.1.model: expected one of sizes, gpt-22b, ",
    ),
    "figure": (
        lambda file: row_of(file).update(mfu="51.4"),
        "records.1.mfu: expected a number above 0, got the text '51.4'",
    ),
    "unknown": (
        lambda file: row_of(file).update(mfus=51.4),
        "records.1.mfus: expected a known key, got 'mfus'",
    ),
    "twice": (
        lambda file: file["tables"]["a100_80gb"]["records"].append(row_of(file)),
        "records.1: expected one row of gpt-175b, 2048 tokens, got 2",
    ),
    "counted": (
        lambda file: file.update(counted="most"),
        "language_models.counted: expected all or matmul, got ",
    ),
    "parameters": (
        lambda file: file.update(counted="all"),
        "records.0.parameters: expected the number of ",
    ),
    "heads": (
        lambda file: file["sizes"]["gpt-22b"]["transformer"].update(heads=65),
        "transformer.heads: expected a divisor of the width 6144, got 65",
    ),
    "layers": (
        lambda file: file["sizes"]["gpt-22b"]["transformer"].pop("layers"),
        "sizes.gpt-22b.transformer.layers: expected number of layers, got nothing",
    ),
    "records": (
        lambda file: file["tables"]["a100_80gb"].update(records=[]),
        "expected at least one entry, got none",
    ),
    "operations": (
        lambda file: file.update(operations={"parameters": 0, "attention": 0}),
        "language_models.operations.parameters: expected a whole number ≥ 1, got the number 0",
    ),
    "printed": (
        lambda file: file["printed"]["mfu"].update(by="up"),
        "printed.mfu.by: expected nearest or cut, got ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_with_file_line_and_key(tmp_path: Path, mistake: str) -> None:
    change, said = MISTAKES[mistake]

    def changing(language: dict[str, Any]) -> None:
        change(language)

    path = written(tmp_path, changing)
    with pytest.raises((ConfigError, Faults)) as caught:
        read_tables(path)
    errors = caught.value.errors if isinstance(caught.value, Faults) else (caught.value,)
    texts = [str(error) for error in errors]
    assert any(said in text for text in texts), texts
    assert all(text.startswith(f"{path}:") and text[len(f"{path}:")].isdigit() for text in texts), (
        texts
    )


def test_all_experts_and_a_table_of_its_own_are_parameters() -> None:
    mixtral = Transformer(
        32,
        4096,
        32,
        8,
        128,
        14336,
        gated=True,
        vocab=32000,
        tied=False,
        experts=8,
        active_experts=2,
    )
    assert (
        Sizes.of(mixtral, vectors_per_layer=2, vectors_per_model=1).parameters(4096)
        == 46_702_792_704
    )


def test_a_file_without_any_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "published.json").write_text('{"schema": 1, "source": "a paper"}')
    with pytest.raises(Faults) as caught:
        read_tables(tmp_path)
    assert "expected tables: or language_models:, got neither" in str(caught.value.errors[0])


def test_the_example_of_the_documentation_is_without_a_fault(tmp_path: Path) -> None:
    page = (TEMPLATES.parent / "docs" / "published.md").read_text("utf-8")
    (tmp_path / "published.json").write_text(page.split("```json\n")[2].split("```")[0], "utf-8")
    (check,) = map(recompute_language, read_tables(tmp_path).language)
    assert {number.what: number.agrees for number in check.checks} == {"mfu": True, "hfu": True}


def orch(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(program(), ["published", *words], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_counts_and_names_what_does_not_follow() -> None:
    code, output = orch(str(TEMPLATES / "llm_foundry"))
    assert code == 0
    assert "5 tables: 1726 of 1728 printed numbers follow from the other printed numbers" in output
    assert (
        "≠ a100_40gb_bf16: mpt-7b, 8192 tokens, 8 GPUs, b3x4: tflops_per_device 153, recomputed 152.992637"
        in output
    )
    assert "41.25 = 41.249" in output and "153 ≠ 152.996" in output
    assert "! mpt-1b, 2048 tokens, 64 GPUs, b10x1: superlinear" in output


def test_a_figure_that_nobody_declared_ends_with_status_4(tmp_path: Path) -> None:
    path = written(tmp_path, lambda language: row_of(language).update(hfu=53.8))
    code, output = orch(str(path))
    assert code != 0 and "≠ gpt-175b, 2048 tokens: hfu 53.8, recomputed 52.7" in output


def test_json_has_every_figure_with_its_bounds() -> None:
    code, output = orch(str(TEMPLATES / "megatron_lm"), "--json")
    assert code == 0
    (table,) = json.loads(output)[0]["language_models"]
    assert [record["figures"]["mfu"] for record in table["records"]] == [41.5, 51.4, 56.0, 56.3]
    assert [(check["what"], check["agrees"]) for check in table["checks"]] == [("hfu", True)] * 4
    assert all(
        check["low"] < check["printed"] + 0.05 and check["printed"] - 0.05 < check["high"]
        for check in table["checks"]
    )


# --- rows as other documents print them -----------------------------------------------------------

GPT = {
    "transformer": {
        "layers": 4,
        "width": 1024,
        "heads": 8,
        "mlp": 4096,
        "gated": False,
        "vocab": 32768,
    }
}
MLA = {"weights": 37_000_000_000, "attention_width": 61 * 128 * (192 + 128) // 2}
"""A model of 61 layers with multi-head latent attention: 128 heads whose keys are 192 wide and
whose values 128.
"""


def document(*records: dict[str, Any], sizes: dict[str, Any] = GPT, **table: Any) -> dict[str, Any]:
    """Return a file with one table of a model on H100."""
    own = {
        "hardware": "H100",
        "dtype": "bf16",
        "peak_tflops": 989.5,
        "records": list(records),
        **table,
    }
    printed = {"mfu": {"places": 1}, "step_time_s": {"places": 2}, "tokens_per_s_per_device": {}}
    models = {
        "operations": {"parameters": 6, "attention": 12},
        "counted": "matmul",
        "printed": printed,
        "sizes": {"own": sizes},
        "tables": {"own": own},
    }
    return {"schema": 1, "source": "a report", "language_models": models}


def read(folder: Path, content: dict[str, Any]) -> LanguageTable:
    (folder / "published.json").write_text(json.dumps(content))
    (table,) = open_published("own", folder).language
    return table


def agreement(table: LanguageTable) -> list[dict[str, bool]]:
    """Return for each row which figures follow from the others."""
    checks = recompute_language(table).checks
    return [
        {one.what: one.agrees for one in checks if one.record == record.name}
        for record in table.records
    ]


def test_mfu_follows_from_tokens_of_a_device(tmp_path: Path) -> None:
    """F = 6 (4 · 12 · 1024² + 1024 · 32768) + 12 · 4 · 1024 · 2048 = 603,979,776: 100,000 tokens/s
    are 6.10 %.
    """
    rows = [{"model": "own", "seq_len": 2048, "gpus": gpus} for gpus in (8, 16)]
    right = [
        rows[0] | {"tokens_per_s_per_device": 100_000, "mfu": 6.1},
        rows[1] | {"tokens_per_s_per_device": 80_000, "mfu": 4.9},
    ]
    assert agreement(read(tmp_path, document(*right))) == [{"mfu": True}, {"mfu": True}]
    reversed_pair = [
        row | {"mfu": other["mfu"]} for row, other in zip(right, reversed(right), strict=True)
    ]
    assert agreement(read(tmp_path, document(*reversed_pair))) == [{"mfu": False}, {"mfu": False}]


def test_a_batch_is_a_whole_number_of_passes_where_their_number_is_not_printed(
    tmp_path: Path,
) -> None:
    row = {"model": "own", "seq_len": 2048, "gpus": 8, "batch_size": 16}

    assert agreement(read(tmp_path, document(row | {"global_batch": 16}))) == [
        {"global_batch": False}
    ]
    assert agreement(read(tmp_path, document(row | {"global_batch": 256}))) == [{}]


def test_a_step_time_and_the_ranks_of_a_copy_give_the_speed(tmp_path: Path) -> None:
    """64 devices in copies of 2 · 4 · 2 are 4 copies: 4 · 8 · 4 = 128 sequences; 128 · 4096 / 2 s /
    64 = 4096 a device.
    """
    row = {
        "model": "own",
        "seq_len": 4096,
        "gpus": 64,
        "batch_size": 4,
        "micro_batches": 8,
        "step_time_s": 2.0,
    }
    row |= {
        "tensor_parallel": 2,
        "pipeline_parallel": 4,
        "context_parallel": 2,
        "global_batch": 128,
    }
    table = read(tmp_path, document(row | {"tokens_per_s_per_device": 4096}))
    assert table.records[0].name == "own, 4096 tokens, 64 GPUs, b4x8, tp2 pp4 cp2"
    assert agreement(table) == [{"global_batch": True, "tokens_per_s_per_device": True}]
    assert agreement(read(tmp_path, document(row | {"tokens_per_s_per_device": 8192}))) == [
        {"global_batch": True, "tokens_per_s_per_device": False}
    ]
    with pytest.raises(
        (ConfigError, Faults),
        match="expected a multiple of the 16 devices of a copy of the model, got 24",
    ):
        read(tmp_path, document(row | {"gpus": 24}))


def test_settings_tell_rows_apart(tmp_path: Path) -> None:
    row = {"model": "own", "seq_len": 2048, "gpus": 8, "tokens_per_s": 800_000}
    rows = [row | {"settings": {"zero": zero, "offload": False}} for zero in (1, 3)]
    names = [record.name for record in read(tmp_path, document(*rows)).records]
    assert names == ["own, 2048 tokens, 8 GPUs, zero=1", "own, 2048 tokens, 8 GPUs, zero=3"]
    with pytest.raises(
        (ConfigError, Faults), match="expected one row of own, 2048 tokens, 8 GPUs, got 2"
    ):
        read(tmp_path, document(rows[0], rows[0]))


def test_a_table_may_count_operations_as_the_file_does_not(tmp_path: Path) -> None:
    row = {
        "model": "own",
        "seq_len": 2048,
        "gpus": 8,
        "tokens_per_s_per_device": 100_000,
        "mfu": 6.1,
    }
    halved = document(row, operations={"parameters": 6, "attention": 6})
    assert agreement(read(tmp_path, document(row))) == [{"mfu": True}]
    assert agreement(read(tmp_path, halved)) == [{"mfu": False}]
    halved["language_models"]["tables"]["own"]["records"][0]["mfu"] = 5.6
    assert agreement(read(tmp_path, halved)) == [{"mfu": True}]


def test_a_model_that_no_transformer_describes_has_weights_and_a_width_of_attention(
    tmp_path: Path,
) -> None:
    """6 · 37e9 + 12 · 1249280 · 4096 = 283.4e9 operations a token; 1,500 a second are 425.1 of
    989.5 TFLOP/s.
    """
    row = {
        "model": "own",
        "seq_len": 4096,
        "gpus": 256,
        "tokens_per_s_per_device": 1500,
        "mfu": 43.0,
    }
    assert agreement(read(tmp_path, document(row, sizes=MLA))) == [{"mfu": True}]
    with pytest.raises(
        (ConfigError, Faults),
        match="expected transformer, or weights with attention_width, got both",
    ):
        read(tmp_path, document(row, sizes=MLA | GPT))
