"""`orch compare` and `orch gate`: compare two benches, for people and for a CI server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import Bench, FirstBench, Json, find_bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.analysis.compare import Comparison
    from orchestrator.errors import OrchError
    from orchestrator.record import BenchDir


_UNDECIDED = ("fail", "pass")

Metric = Annotated[
    str,
    typer.Option(
        "--metric", metavar="NAME", help="Compare this metric, or all; default: the primary one."
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="FIELD=X,Y",
        help="Take configurations with X from A and with Y from B: dtype=fp32,fp16, or an option.",
    ),
]


def compare(
    before: FirstBench,
    after: Annotated[
        str,
        typer.Argument(
            metavar="B",
            autocompletion=complete.benches,
            help="The bench to compare with it. Default with --by: A.",
        ),
    ] = "",
    by: By = None,
    metric: Metric = "",
    as_json: Json = False,
) -> None:
    """Show whether bench B is faster or slower than A, how certain that is, and what else differs,
    likeliest cause first.

    Exits with 2 if no configurations match.
    """
    from orchestrator.analysis.compare import compare as compared
    from orchestrator.errors import ConfigError

    if not (after or by):
        raise ConfigError(
            "expected a second bench, got none",
            where="B",
            hint="--by compares configurations of one bench",
        )
    benches = find_bench(before), find_bench(after or before)
    comparison, damaged = compared(*benches, by=parse_by(by or []), metric=metric)
    _show(comparison, as_json, benches)
    _refuse(list(damaged) or no_pair_error(comparison, by or []))


def gate(
    bench: Bench = "",
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="REF", help="The bench to compare with.")
    ] = "",
    max_regression: Annotated[
        str,
        typer.Option("--max-regression", metavar="N%", help="How much slower the bench may be."),
    ] = "3%",
    undecided: Annotated[
        str,
        typer.Option(
            "--undecided",
            metavar="fail|pass",
            help="If a larger regression is not ruled out: exit with 6, or with 0.",
        ),
    ] = "fail",
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            metavar="N%",
            help="Compare nothing; show how many repeats find a change of N%, by the scatter of the benches named.",
        ),
    ] = "",
    metric: Metric = "",
    as_json: Json = False,
) -> None:
    """Compare a bench with a baseline, for CI.

    Exits with 5 if a configuration is slower than allowed, with 6 if that cannot be decided,
    because it has no counterpart, too few repeats or failed runs, or a larger regression is not
    ruled out; otherwise with 0.
    """
    from orchestrator.analysis.compare import compare as compared
    from orchestrator.errors import ConfigError
    from orchestrator.plan.option_values import share
    from orchestrator.report.text import one_line

    allowed = share(max_regression, "--max-regression")
    if undecided not in _UNDECIDED:
        raise ConfigError(
            f"expected {' or '.join(_UNDECIDED)}, got {undecided!r}", where="--undecided"
        )
    if plan:
        _plan(
            [name for name in (baseline, bench) if name] or [""],
            share(plan, "--plan"),
            allowed,
            metric,
            as_json,
        )
        return
    if not baseline:
        raise ConfigError(
            "expected a bench's name, label or directory, got none", where="--baseline"
        )
    reference, measured = find_bench(baseline), find_bench(bench)
    comparison, damaged = compared(reference, measured, allowed, metric=metric)
    if reference.path.resolve() == measured.path.resolve():
        raise ConfigError(
            "expected a bench other than the one under test", where=f"--baseline {baseline}"
        )
    _show(comparison, as_json, (reference, measured))
    wide = _not_ruled_out(comparison)
    _refuse(
        [
            *_regressions(comparison),
            *damaged,
            *_verdict_errors(comparison),
            *(wide if undecided == "fail" else ()),
        ]
    )
    for error in wide:
        typer.echo(one_line(str(error)), err=True)
    what = "significantly more" if wide else "more"
    typer.echo(
        f"no configuration is {what} than {max_regression} slower than in {comparison.before}",
        err=True,
    )


def _plan(names: Sequence[str], change: float, allowed: float, metric: str, as_json: bool) -> None:
    from orchestrator.analysis.compare.detectable import detectable
    from orchestrator.report import compare as report
    from orchestrator.report.text import stdout_console

    found = detectable([find_bench(name) for name in names], change, allowed, metric)
    if as_json:
        typer.echo(report.detectable_json(found, change, allowed), nl=False)
    else:
        report.render_detectable(found, change, allowed, stdout_console())


def parse_by(texts: Sequence[str]) -> list[tuple[str, tuple[str, str]]]:
    """Return the fields of ``--by``, each with its value in A and in B. Raise ConfigError for
    anything else.
    """
    from orchestrator.errors import ConfigError

    chosen = []
    for text in texts:
        name, _, values = text.partition("=")
        first, comma, second = values.partition(",")
        if not (name and first and comma and second) or first == second:
            raise ConfigError(
                f"expected a field and two values, such as dtype=fp32,fp16, got {text!r}",
                where="--by",
            )
        chosen.append((name, (first, second)))
    return chosen


def _show(comparison: Comparison, as_json: bool, benches: tuple[BenchDir, BenchDir]) -> None:
    from orchestrator.report import compare as report
    from orchestrator.report.text import stdout_console

    if as_json:
        typer.echo(report.as_json(comparison), nl=False)
        return
    before, after = (bench.record().label for bench in benches)
    report.render(comparison, stdout_console(), (before, after))


def no_pair_error(comparison: Comparison, by: Sequence[str]) -> list[OrchError]:
    """Return the error of a comparison without a pair, which says why there is none."""
    from orchestrator.errors import ConfigError

    if comparison.pairs:
        return []
    where = " ".join(f"--by {text}" for text in by) or f"{comparison.before}, {comparison.after}"
    if any(text.partition("=")[0] in ("nodes", "gpus") for text in by):
        message = "expected a field other than nodes and gpus, because only configurations of the same size are compared"
        return [
            ConfigError(
                message, where=where, hint="orch summarize shows speedup and efficiency over sizes"
            )
        ]
    sides = ((comparison.before, comparison.only_before), (comparison.after, comparison.only_after))
    got = "; ".join(f"{name} has {', '.join(cases) or 'none'}" for name, cases in sides)
    hint = (
        "configurations correspond if A and B differ in the same settings for all of them; "
        "--by FIELD=X,Y pairs them by a field"
    )
    return [ConfigError(f"expected configurations that correspond, {got}", where=where, hint=hint)]


def _regressions(comparison: Comparison) -> list[OrchError]:
    from orchestrator.analysis.compare.cells import SLOWER, doubt
    from orchestrator.errors import Regression
    from orchestrator.report.compare import change

    return [
        Regression(
            f"expected at most {comparison.margin * 100:.4g}% slower than {comparison.before}, got {change(pair)}",
            kind="regression",
            where=f"{comparison.after}: {pair.case}",
        )
        for pair in comparison.pairs
        if pair.verdict == SLOWER and not doubt(pair)
    ]


def _verdict_errors(comparison: Comparison) -> list[OrchError]:
    from orchestrator.analysis.compare.cells import SAME, doubt
    from orchestrator.errors import Undecided

    # A baseline that one bench has borrowed from the other is no measurement of the later one.
    own = [pair for pair in comparison.pairs if pair.verdict != SAME] or comparison.pairs
    why = {pair.case: doubt(pair) for pair in own}
    why |= {
        case: f"{comparison.before} has no configuration with its spec"
        for case in comparison.only_after
    }
    places = {f"{comparison.after}: {case}": reason for case, reason in why.items()} or {
        comparison.after: "it has no runs"
    }
    return [
        Undecided(f"no verdict: {reason}", kind="no_verdict", where=where)
        for where, reason in places.items()
        if reason
    ]


def _not_ruled_out(comparison: Comparison) -> list[OrchError]:
    """Return an error for each configuration whose interval reaches beyond the limit, with
    what would settle it.
    """
    from orchestrator.analysis.compare.cells import SLOWER, doubt
    from orchestrator.analysis.compare.detectable import repeats_to_settle
    from orchestrator.errors import Undecided
    from orchestrator.plural import plural
    from orchestrator.report.compare import change
    from orchestrator.results.numbers.power import MOST_REPEATS

    errors: list[OrchError] = []
    for pair in comparison.pairs:
        if (
            pair.gain is None
            or pair.gain.low >= 1 - comparison.margin
            or pair.verdict == SLOWER
            or doubt(pair)
        ):
            continue
        needed = repeats_to_settle(pair, comparison.margin)
        hint = f"the change is so close to what is allowed that {MOST_REPEATS} repeats would not settle it"
        if needed:
            hint = f"if it is as measured, {plural(needed, 'repeat')} in each bench settle it in nine of ten"
        message = (
            f"expected at most {comparison.margin * 100:.4g}% slower, got {change(pair)}: a "
            "larger regression is not ruled out"
        )
        errors.append(
            Undecided(
                message, kind="no_verdict", where=f"{comparison.after}: {pair.case}", hint=hint
            )
        )
    return errors


def _refuse(errors: list[OrchError]) -> None:
    from orchestrator.errors import Faults

    if errors:
        raise Faults(errors)
