"""The program that measures pairs: who meets whom, and what it prints over gloo."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from orchestrator.logs.parse import parse
from orchestrator.plan.folders import open_framework
from orchestrator.plan.spec import RunSpec, resolve
from orchestrator.results.links.pair_times import pair_times
from tests.support.judge import LIMIT_S
from tests.support.ranks import ENVIRONMENT, ranks
from tests.support.trainers import FLAT, PYTHON, needs

FRAMEWORK = open_framework("pairs").framework
PROGRAM = FLAT / "pairs.py"


def test_each_pair_meets_once_and_no_node_twice_in_a_round() -> None:
    needs("torch")
    code = "import json, pairs; print(json.dumps({n: [pairs.rounds(n, s) for s in range(6)] for n in range(2, 18)}))"
    done = subprocess.run(
        [PYTHON, "-c", code],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    for text, sweeps in json.loads(done.stdout).items():
        count = int(text)
        for rounds in sweeps:
            assert len(rounds) == (count if count % 2 else count - 1)
            met = Counter(tuple(pair) for round_ in rounds for pair in round_)
            assert met == Counter(dict.fromkeys(combinations(range(count), 2), 1))
            assert all(
                max(Counter(node for pair in round_ for node in pair).values()) == 1
                for round_ in rounds
            )
        if count >= 6:  # with four, who meets beside a pair is always the other two
            company = {tuple(sorted(map(tuple, round_))) for rounds in sweeps for round_ in rounds}
            assert len(company) > len(sweeps[0]), "the same pairs share every round"


def spec_of(nodes: int, gpus: int, steps: int, **sets: str) -> RunSpec:
    choices: dict[str, object] = {"nodes": nodes, "gpus": gpus, "steps": steps, "warmup_steps": 1}
    choices |= {f"options.{name}": text for name, text in sets.items()}
    return resolve(FRAMEWORK, "pairs", device="cpu", choices=choices)


@pytest.mark.parametrize(
    ("nodes", "gpus", "sets", "directions"),
    [
        (4, 1, {"size_bytes": "65536"}, {"a-to-b", "b-to-a", "both", "ping"}),
        (
            3,
            2,
            {"size_bytes": "4096", "all_reduce": "true"},
            {"a-to-b", "b-to-a", "both", "all-reduce", "ping"},
        ),
    ],
)
def test_the_lead_of_each_pair_prints_every_time_once(
    tmp_path: Path, nodes: int, gpus: int, sets: dict[str, str], directions: set[str]
) -> None:
    needs("torch")
    flags = [
        word for name, value in sets.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    arguments = ["--device", "cpu", "--steps", "3", "--iterations", "2", *flags]
    out = ranks(PROGRAM, arguments, tmp_path, gpus, nodes=nodes)
    parsed = [parse(text.encode(), FRAMEWORK.log) for text in out]
    assert [one.ranks for one in parsed] == [
        ((rank, nodes * gpus),) for rank in range(nodes * gpus)
    ]
    for rank, one in enumerate(parsed):
        mine = {(int(line["a"]), int(line["local_rank"])) for line in one.readings}
        assert mine <= {(rank // gpus, rank % gpus)}
    lines = [line for one in parsed for line in one.readings]
    hosts = [f"node{node + 1}" for node in range(nodes)]
    found = pair_times(spec_of(nodes, gpus, 3, **sets), lines, {"nodes": hosts})
    assert {(one.pair, one.direction) for one in found} == {
        (pair, direction) for pair in combinations(range(nodes), 2) for direction in directions
    }
    assert all(
        len(one.times_s) == 2 and min(one.times_s) > 0 and max(one.times_s) < 10 for one in found
    )
    closing = parsed[0].closing
    assert closing and (closing["world_size"], closing["ranks"]) == (
        nodes * gpus,
        list(range(nodes * gpus)),
    )
    assert (closing["backend"], closing["steps"], closing["size_bytes"]) == (
        "gloo",
        3,
        int(sets["size_bytes"]),
    )
    assert [one.closing for one in parsed[1:]] == [None] * (nodes * gpus - 1)


def test_peers_meet_within_their_node_only(tmp_path: Path) -> None:
    needs("torch")
    arguments = ["--model", "peers", "--device", "cpu", "--steps", "2", "--iterations", "1"]
    out = ranks(PROGRAM, [*arguments, "--size-bytes", "4096"], tmp_path, 3, nodes=2)
    lines = [line for text in out for line in parse(text.encode(), FRAMEWORK.log).readings]
    choices = {"nodes": 2, "gpus": 3, "steps": 2, "warmup_steps": 1, "options.size_bytes": "4096"}
    spec = resolve(FRAMEWORK, "peers", device="cpu", choices=choices)
    found = pair_times(spec, lines, {"nodes": ["node1", "node2"]})
    assert {one.pair for one in found} == {
        *combinations(range(3), 2),
        *combinations(range(3, 6), 2),
    }
    assert ("node2 rank 0", "node2 rank 2") in {one.names for one in found}


def test_more_bytes_take_longer(tmp_path: Path) -> None:
    needs("torch")
    fastest = {}  # which a busy machine spoils least
    for size in (4096, 33554432):
        folder = tmp_path / str(size)
        folder.mkdir()
        words = ["--device", "cpu", "--steps", "6", "--iterations", "1", "--size-bytes", str(size)]
        out = ranks(PROGRAM, words, folder, 1, nodes=2)
        for way in ("a-to-b", "b-to-a", "both"):
            fastest[way, size] = min(
                float(text) for text in re.findall(rf"direction={way} .* time_s=(\S+)", out[0])
            )
    for way in ("a-to-b", "b-to-a", "both"):
        assert fastest[way, 33554432] > 3 * fastest[way, 4096]
