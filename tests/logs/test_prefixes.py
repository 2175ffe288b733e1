"""Numbers, prefixes and metrics as programs and launchers print them."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.metrics import Metric
from orchestrator.logs.parse import parse
from tests.logs.line_by_line import line_by_line


@pytest.mark.parametrize("escape", ["", "\x1b[32m"])
def test_thousands_and_suffixes_are_read_in_blocks_and_line_by_line(escape: str) -> None:
    """As torchtitan prints tokens/s, and nanotron."""
    pattern = r"step: +(?P<step>[0-9,]+) .*tps: (?P<samples_per_s>[0-9.,KM]+)"
    grammar = LogGrammar((), (pattern,), thousands=",", suffixes={"K": 1000, "M": 1000000})
    texts = ["5,762", "106K", "1.31M", "98.2"]
    log = "".join(
        f"[titan] step:  1,00{step} loss: 7.1 {escape}tps: {text}\n"
        for step, text in enumerate(texts, start=1)
    )
    for read in (parse, line_by_line):
        parsed = read(log.encode(), grammar)
        assert [sample.samples_per_s for sample in parsed.samples] == [5762.0, 106e3, 1.31e6, 98.2]
        assert [sample.step for sample in parsed.samples] == [
            1001,
            1002,
            1003,
            1004,
        ] and not parsed.misread


def test_a_decimal_comma_is_no_separator_and_is_named() -> None:
    grammar = LogGrammar((), (r"step (?P<step>[0-9]+) tps (?P<samples_per_s>\S+)",), thousands=",")
    assert parse(b"step 1 tps 57,62\n", grammar).misread == "samples_per_s '57,62'"


PREFIXES = {
    "horovodrun": (r"^\[(?P<rank>[0-9]+)\]<std(?:out|err)>:", "[{}]<stdout>:"),
    "torchrun": (r"^\[[a-z]+(?P<local_rank>[0-9]+)\]:", "[rank{}]:"),
    "srun": (r"^ *(?P<rank>[0-9]+): ", "{:>2}: "),
}


@pytest.mark.parametrize("launcher", PREFIXES)
def test_a_prefix_tells_the_lines_of_ranks_apart(launcher: str) -> None:
    prefix, printed = PREFIXES[launcher]
    grammar = LogGrammar(
        (),
        (r"^step (?P<step>[0-9]+) (?P<step_time_s>[0-9.]+) s$",),
        scope="process",
        readings=(r"^memory (?P<memory>[0-9]+)$",),
        prefix=prefix,
    )
    ranks = range(12)
    lines = [
        printed.format(rank) + f"step {step} {rank + step}.5 s"
        for step in (1, 2, 3)
        for rank in ranks
    ]
    lines += [printed.format(rank) + f"memory {rank}" for rank in ranks] + ["step 1 of nothing"]
    for read in (parse, line_by_line):
        parsed = read("\n".join(["", *lines, ""]).encode(), grammar)
        assert [sample.step_time_s for sample in parsed.samples] == [
            6.0 + step for step in (1, 2, 3)
        ]
        group = "local_rank" if launcher == "torchrun" else "rank"
        assert [(line[group], line["memory"]) for line in parsed.readings] == [
            (str(rank), str(rank)) for rank in ranks
        ]


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        (r"^(?P<rank>[0-9]+)(?P<local_rank>[0-9]+): ", "got both"),
        (r"^\s*(?P<rank>[0-9]+): ", "end of a line"),
        (r"^(?P<rank>[0-9]+)", "plain characters"),
        (r"^(?P<task>[0-9]+): ", "rank, local_rank"),
    ],
)
def test_a_prefix_that_cannot_be_used_is_refused(prefix: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(b"", LogGrammar((), prefix=prefix))


def test_lines_of_steps_may_have_metrics() -> None:
    patterns = (
        r"iter (?P<step>[0-9]+): (?P<step_time_s>[0-9.]+) s, mfu (?:(?P<mfu>[0-9.]+)%|none) ",
        r"loss (?P<loss>[0-9.]+) tps (?P<tps>[0-9]+) ",
    )
    grammar = LogGrammar(
        ("*",), patterns, counts_from=0, metrics=(Metric("mfu", "%"), Metric("tps", "tokens/s"))
    )
    lines = [
        b"iter 0: 0.5 s, mfu none ",
        b"loss 2.5 tps 7 ",
        b"iter 1: 0.25 s, mfu 41.5% ",
        b"loss 2.4 tps 8 ",
    ]
    parsed = parse(b"\n".join([*lines, b""]), grammar)
    assert [(sample.step, sample.step_time_s, sample.loss) for sample in parsed.samples] == [
        (1, 0.5, 2.5),
        (2, 0.25, 2.4),
    ]
    # A line without a step belongs to the step before it, as the program counts.
    assert [(line["step"], line.get("mfu"), line.get("tps")) for line in parsed.readings] == [
        ("0", None, None), ("0", None, "7"), ("1", "41.5", None), ("1", None, "8"),
    ]  # fmt: skip
    assert parsed.warnings == ()


def test_a_group_of_a_step_that_is_no_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected named groups from step, .*, mfu, got tps"):
        parse(
            b"",
            LogGrammar(
                ("*",), (r"(?P<step>[0-9]+) (?P<tps>[0-9]+)",), metrics=(Metric("mfu", "%"),)
            ),
        )


@pytest.mark.parametrize("label", [" {}: ", "[{}]<stdout>:"])
def test_a_launchers_prefix_is_found_where_no_grammar_declares_it(label: str) -> None:
    """As srun -l and horovodrun print it."""
    pattern = r"^step (?P<step>[0-9]+) in (?P<step_time_s>[0-9.]+) s$"
    lines = [f"step {step} in 0.{step} s" for step in range(1, 9)]
    log = "".join(label.format(rank) + f"{line}\n" for line in lines for rank in (0, 1))
    grammar = LogGrammar((), (pattern,))

    assert (
        parse(log.encode(), grammar).samples
        == parse("\n".join([*lines, ""]).encode(), grammar).samples
    )
    assert not parse(b"model\n" * 3 + log.encode(), grammar).has_results


def test_numbers_at_the_beginning_of_lines_are_no_prefix_for_a_pattern_that_has_them() -> None:
    grammar = LogGrammar((), (r"^(?P<step>[0-9]+): (?P<step_time_s>[0-9.]+)$",))
    parsed = parse(b"1: 0.5\n2: 0.5\n", grammar)

    assert ([sample.step for sample in parsed.samples], parsed.prefix) == ([1, 2], "")
