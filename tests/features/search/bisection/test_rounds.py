"""A bisect on fake nodes: which runs it makes, what it records, what ends it, and how another
controller goes on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller.controller import Controller
from orchestrator.controller.events import RunOver
from orchestrator.errors import RunError
from orchestrator.features.search.bisection.answer import Bisected, answer, left_open, list_attempts
from orchestrator.features.search.bisection.differences import apply_candidate
from orchestrator.features.search.reading import open_search
from orchestrator.features.search.record import BisectRecord, Difference, SideRecord
from orchestrator.features.search.rounds import Rounds
from orchestrator.inventory import Host, Redaction
from orchestrator.plan.bench import Bench, PlannedRun
from orchestrator.plan.limits import Limits
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec, resolve
from orchestrator.record.bench_record import BenchRecord, new_bench_record
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from orchestrator.results.series import group_rows
from orchestrator.results.summary import summarize
from tests.support.fake_bench import FOLDER, FakeBench, training
from tests.support.fake_supervisor import Rank
from tests.support.run_folders import BATCH, GPUS, NODES, STEPS, WARMUP, build

COMPUTE, SEED, ALGO = (
    Difference("options.compute_ms", 20.0, 25.0),
    Difference("options.seed", 0, 1),
    Difference("env.NCCL_ALGO", None, "Tree"),
)
NOISE = (1.0, 1.004, 0.998, 1.003, 0.997)
StepTime = Callable[[RunSpec], float]


def begin(
    spec: RunSpec, differences: tuple[Difference, ...], budget_s: float
) -> tuple[Bench, BisectRecord]:
    """Return the plan and the record of a bisect of ``differences``."""
    sides = (SideRecord("one", "2n1g", 1000.0, 5), SideRecord("two", "2n1g", 800.0, 5))
    search = BisectRecord(*sides, "samples_per_s", (), "samples/s", "higher", "slower", differences)
    count = len(differences)
    a, b = (apply_candidate(spec, FOLDER.framework, search, (taken,) * count) for taken in (0, 1))
    schedule = Schedule("balanced", 0, 4, budget_s=budget_s)
    return Bench("bench-2", (a, b), {"simulated": FOLDER}, schedule), search


def result_of(bench: BenchDir) -> Bisected:
    found = open_search(bench, read_bench(bench)).outcome(bench.record()).result
    assert isinstance(found, Bisected)
    return found


def search_of(bench: BenchDir) -> BisectRecord:
    found = bench.record().added["bisect"]
    assert isinstance(found, BisectRecord)
    return found


class Quick:
    """A bisect whose runs are written as a controller leaves them; steps take what ``step_s`` says,
    but for a little noise, and a run of no time fails.
    """

    def __init__(
        self,
        directory: Path,
        differences: tuple[Difference, ...],
        step_s: StepTime,
        *,
        budget_s: float = 600.0,
    ) -> None:
        sizes = {"nodes": NODES, "gpus": GPUS, "batch_size": BATCH, "dtype": "fp16"}
        choices = {**sizes, "steps": STEPS, "warmup_steps": WARMUP}
        spec = resolve(FOLDER.framework, "resnet50", device="cpu", choices=choices)
        self.step_s, self.noise = step_s, itertools.cycle(NOISE)
        self.plan, search = begin(spec, differences, budget_s)
        hosts = [Host(f"node{n}", f"10.11.0.{n}", gpus=0, slots=GPUS) for n in (1, 2)]
        record = new_bench_record(
            self.plan, {}, hosts, "lab.yaml", (), Limits(), (), ["orch"], {"bisect": search}
        )
        self.bench = BenchDir.create(directory / "runs", record.as_dict())

    def conduct(self) -> tuple[list[str], Bisected]:
        rounds = Rounds(self.bench, self.plan, lambda event: None)
        errors = []
        for run in rounds.runs(list(self.plan.list_runs())):
            took_s = self.step_s(run.spec) * next(self.noise)
            message = "" if took_s else "rank 0 failed: exit code 3"
            error = RunError(message, kind="rank_failed", run_id=run.run_id)

            def planned(content: dict[str, Any], logs: Any, run: PlannedRun = run) -> None:
                content["spec"] = run.spec.as_dict()
                content["framework"] |= {"name": "simulated"}

            made = build(self.bench, run.run_id, planned, repeat=run.repeat, seconds=took_s)
            if message:
                errors.append(error)
                made.update_manifest(outcome={"state": "failed", "error": error.as_dict()})
        return [error.kind for error in rounds.select_errors(errors)], result_of(self.bench)


class Rig(FakeBench):
    """The same with a controller, on the fake nodes a and b."""

    def __init__(
        self, directory: Path, differences: tuple[Difference, ...], step_s: StepTime
    ) -> None:
        super().__init__(directory)
        noise = itertools.cycle(NOISE)
        self.plan, search = begin(self.spec, differences, 600.0)
        record = new_bench_record(
            self.plan,
            {},
            self.hosts,
            str(self.source),
            self.secrets,
            self.limits,
            (),
            ["orch"],
            {"bisect": search},
        )
        self.bench = BenchDir.create(directory / "runs", record.as_dict())
        times: dict[str, float] = {}

        def program(order: Mapping[str, Any]) -> Mapping[int, Rank]:
            record = self.bench.record()
            assert record.plan
            spec = record.cells[record.plan[order["run_id"]].cell]
            took = times.setdefault(order["run_id"], step_s(spec) * next(noise))
            return (
                training(spec, step_s=took, after_s=0.0)(order)
                if took > 0
                else {order["node_rank"]: Rank(code=3, after_s=0.0)}
            )

        self.runs(program)

    def go_on(self, *, retry_failed: bool = False) -> Controller:
        def connect(hosts: Any, redaction: Redaction) -> Any:
            return self.cluster

        runs = self.bench.path.parent
        return Controller.go_on(
            self.bench, runs, connect, retry_failed=retry_failed, argv=["orch", "resume"]
        )

    def conduct(self, controller: Controller | None = None) -> tuple[list[str], Bisected]:
        errors, _ = (controller or self.controller()).conduct(self.show)
        return [error.kind for error in errors], result_of(self.bench)


def slow(name: str, value: object, factor: float = 1.25) -> StepTime:
    return lambda spec: 0.5 * (factor if spec.settings.get(name) == value else 1.0)


def test_one_of_three_is_proven_and_the_others_are_excluded(tmp_path: Path) -> None:
    rig = Quick(tmp_path, (SEED, COMPUTE, ALGO), slow("compute_ms", 25.0))
    kinds, found = rig.conduct()
    assert (kinds, found.verdict, found.causes, found.doubtful) == (
        [],
        "explained",
        ("compute_ms=25.0",),
        (),
    )
    assert found.share and 0.97 < found.share.low < 1 < found.share.high < 1.03
    assert answer(found).startswith(
        "compute_ms=25.0 explains 100 % (9"
    ) and "of the change from 127.8" in answer(found)
    assert [line.partition(" ")[0] for line in left_open(found)] == ["seed=1", "NCCL_ALGO=Tree"]
    # each in blocks with A and B; the verification has runs of its own
    record = rig.bench.record()
    bisect = search_of(rig.bench)
    assert record.plan and bisect and bisect.rungs[-1].confirms
    last = len(bisect.rungs) - 1
    verifying = [run for run, entry in record.plan.items() if entry.rung == last]
    assert list(found.evidence) == verifying and len(verifying) == 3 * bisect.rungs[-1].repeats
    repeats = [record.plan[run].repeat for run in verifying]
    assert all(repeats.count(repeat) == 3 for repeat in repeats)
    assert (
        record.cells[2].origins["options.seed"] == "B, two"
        and record.cells[2].origins["options.compute_ms"] == "A, one"
    )
    assert found.share.value == pytest.approx(1, abs=0.02)
    assert list_attempts(found)[0][:2] == [
        "search:",
        f"  A: {found.tried[0].typical:.2f} samples/s, {found.tried[0].n} runs",
    ]


def test_two_that_only_work_together_are_proven_together(tmp_path: Path) -> None:
    def step_s(spec: RunSpec) -> float:
        return 0.5 * (
            1.25
            if spec.options["compute_ms"] == 25.0 and spec.env.get("NCCL_ALGO") == "Tree"
            else 1.0
        )

    kinds, found = Quick(tmp_path, (COMPUTE, SEED, ALGO), step_s).conduct()
    assert (kinds, found.verdict, found.causes) == (
        [],
        "explained",
        ("compute_ms=25.0", "NCCL_ALGO=Tree"),
    )
    assert answer(found).startswith("compute_ms=25.0 and NCCL_ALGO=Tree together explain ")
    assert abs(found.alone["compute_ms=25.0"].value) < 0.1
    unsure = replace(found, causes=found.causes[:1], doubtful=found.causes[1:])
    assert answer(unsure) == answer(found), "the share is that of both, whatever is certain of one"
    assert "that NCCL_ALGO=Tree takes part in it is not certain" in left_open(unsure)


def test_where_all_differences_are_needed_the_answer_names_all_and_not_those_of_a_smaller_set_beside(
    tmp_path: Path,
) -> None:
    def step_s(spec: RunSpec) -> float:
        return 0.5 + 0.05 * (spec.options["compute_ms"] == 25.0) + 0.05 * ("NCCL_ALGO" in spec.env)

    rig = Quick(tmp_path, (COMPUTE, ALGO), step_s)
    kinds, found = rig.conduct()
    assert (kinds, found.verdict, found.outside) == ([], "explained", ())
    assert found.causes == ("compute_ms=25.0", "NCCL_ALGO=Tree") and found.share is None
    assert answer(found).startswith(
        "compute_ms=25.0 and NCCL_ALGO=Tree together explain the change"
    )
    last = search_of(rig.bench).rungs[-1]
    assert last.verifies == (1, 1) and len(last.candidates) == 3
    # a bench of an earlier version does not name the set
    record = rig.bench.record().as_dict()
    record["bisect"]["rungs"][-1]["verifies"] = []
    again = BenchRecord.of(json.loads(json.dumps(record)), "bench.json")
    assert again.added["bisect"] == search_of(rig.bench)


def test_hosts_are_a_difference_like_any_other(tmp_path: Path) -> None:
    there, back = ("node1", "node2"), ("node2", "node1")
    hosts = Difference("hosts", ",".join(there), ",".join(back))
    rig = Quick(tmp_path, (hosts, SEED), lambda spec: 0.5 * (1.25 if spec.hosts == back else 1.0))
    kinds, found = rig.conduct()
    assert (kinds, found.verdict, found.causes) == ([], "explained", ("hosts=node2,node1",))
    with_hosts = [cell.hosts for cell in rig.bench.record().cells]
    assert with_hosts == [there, back, back, there]
    (table,) = group_rows(summarize(read_bench(rig.bench)).rows)
    assert set(table.columns) == {"hosts", "seed"}
    assert {table.column(row, "hosts") for row in table.rows} == {"node1,node2", "node2,node1"}


def test_a_single_difference_is_proven_by_a_and_b_alone(tmp_path: Path) -> None:
    kinds, found = Quick(tmp_path, (COMPUTE,), slow("compute_ms", 25.0)).conduct()
    assert (kinds, found.verdict, found.causes, found.share) == (
        [],
        "explained",
        ("compute_ms=25.0",),
        None,
    )
    assert answer(found).endswith("because A and B were run again and differ in nothing else")


def test_where_nothing_differs_any_more_it_ends_after_a_and_b(tmp_path: Path) -> None:
    rig = Quick(tmp_path, (COMPUTE, SEED), lambda _: 0.5)
    kinds, found = rig.conduct()
    assert (kinds, found.verdict, found.causes) == ([], "gone", ()) and len(rig.bench.runs()) == 8
    assert "the change could not be reproduced" in answer(found) and "it was -20.0%" in answer(
        found
    )


def test_a_candidate_that_fails_is_a_result_and_a_side_that_fails_ends_it(tmp_path: Path) -> None:
    def fails_alone(spec: RunSpec) -> float:
        if spec.options["seed"] == 1 and spec.options["compute_ms"] == 20.0:
            return 0.0
        return slow("compute_ms", 25.0)(spec)

    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    kinds, found = Quick(tmp_path / "one", (SEED, COMPUTE), fails_alone).conduct()
    assert (kinds, found.verdict, found.causes) == ([], "explained", ("compute_ms=25.0",))
    (row,) = [row for row in found.tried if row.settings == ("seed=1",)]
    assert row.n == 0 and "exit code 3" in row.failure
    kinds, found = Quick(
        tmp_path / "two", (SEED, COMPUTE), lambda spec: 0.0 if spec.options["seed"] else 0.5
    ).conduct()
    assert (
        kinds == ["rank_failed"] and found.verdict == "failed" and "no result: B: " in answer(found)
    )


def test_a_side_that_failed_once_may_be_repeated_and_the_bisect_goes_on(tmp_path: Path) -> None:
    is_broken = True

    def step_s(spec: RunSpec) -> float:
        return 0.0 if is_broken and spec.options["seed"] else slow("compute_ms", 25.0)(spec)

    rig = Rig(tmp_path, (SEED, COMPUTE), step_s)
    assert rig.conduct()[1].verdict == "failed" and len(rig.bench.record().left_out) == 6
    is_broken = False
    assert rig.conduct(rig.go_on())[1].verdict == "failed", (
        "it is repeated only where that is asked for"
    )
    kinds, found = rig.conduct(rig.go_on(retry_failed=True))
    assert (kinds, found.verdict, found.causes) == ([], "explained", ("compute_ms=25.0",))


def test_without_time_nothing_is_claimed(tmp_path: Path) -> None:
    rig = Quick(tmp_path, (SEED, COMPUTE), slow("compute_ms", 25.0), budget_s=0.001)
    kinds, found = rig.conduct()
    assert (kinds, found.causes) == ([], ()) and found.verdict == "unproven"
    assert "no time was left" in answer(found)


def test_a_controller_that_dies_is_followed_by_one_that_ends_as_it_would_have(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, (SEED, COMPUTE), slow("compute_ms", 25.0))
    over = 0

    class Killed(BaseException):
        pass

    def dies() -> None:
        nonlocal over
        over += 1
        if over == 12:  # the second run of a further round
            raise Killed

    rig.when[RunOver] = dies
    controller = rig.controller()
    with suppress(Killed):
        controller.conduct(rig.show)
    controller.ownership.release()
    if not over:
        pytest.fail("the controller was not interrupted")
    begun = rig.bench.record()
    before = search_of(rig.bench)
    assert before and not before.ended
    kinds, found = rig.conduct(rig.go_on())
    assert (kinds, found.verdict, found.causes) == ([], "explained", ("compute_ms=25.0",))
    record = rig.bench.record()
    after = search_of(rig.bench)
    assert after and after.rungs[: len(before.rungs)] == before.rungs
    assert record.runs[: len(begun.runs)] == begun.runs and not record.superseded
