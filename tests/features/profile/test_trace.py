"""The parts of steps in traces whose every moment is known, and traces that are none."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.features.profile import trace as module
from orchestrator.features.profile.trace import Operator, parse_trace


def event(name: str, category: str, begin: float, end: float, thread: int = 1) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": 1e6 + begin,
        "dur": end - begin,
        "pid": 7,
        "tid": thread,
    }


def packed(*events: Any) -> bytes:
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}).encode())


STEPS = [
    event("orch step 21", "user_annotation", 0, 100),
    event("orch step 22", "user_annotation", 100, 200),
]


def test_on_a_cpu_collectives_of_gloo_are_held_against_operators() -> None:
    found = parse_trace(
        packed(
            *STEPS,
            event(
                "orch step 20", "gpu_user_annotation", 0, 900
            ),  # of a device, where steps end later
            event("aten::linear", "cpu_op", 0, 60),
            event("aten::mm", "cpu_op", 10, 50),
            event("aten::mm", "cpu_op", 100, 160),
            event("c10d::allreduce_", "cpu_op", 60, 100),  # the wait is no computing
            event("gloo:all_reduce", "user_annotation", 40, 100, thread=2),
            event("gloo:all_reduce", "user_annotation", 30, 50, thread=3),
            event(
                "gloo:all_reduce", "user_annotation", 190, 230, thread=2
            ),  # ends after the last step
            {"ph": "i", "name": "gloo:all_reduce", "cat": "user_annotation", "ts": 0},
        ),
        rank=3,
        host="node4",
    ).trace
    assert (found.rank, found.host, found.of_device, found.steps, found.step_s) == (
        3,
        "node4",
        False,
        2,
        pytest.approx(100e-6),
    )
    # Collectives run from 30 to 100 and from 190 to 200, operators from 0 to 60 and from 100 to
    # 160.
    assert (found.communication, found.exposed, found.idle) == pytest.approx(
        (80 / 200, 50 / 200, 30 / 200)
    )
    assert found.overlapped == pytest.approx(30 / 80)
    # The linear layer has no more than what it does besides the product that it calls.
    assert found.top == (
        Operator("aten::mm", 2, pytest.approx(100 / 200)),
        Operator("c10d::allreduce_", 1, pytest.approx(40 / 200)),
        Operator("aten::linear", 1, pytest.approx(20 / 200)),
    )


def test_a_wait_for_a_functional_collective_is_no_computing_of_the_operator_that_calls_it() -> None:
    found = parse_trace(
        packed(
            *STEPS,
            event("aten::add", "cpu_op", 20, 100),
            event("_c10d_functional::wait_tensor", "cpu_op", 30, 90),
            event("aten::mm", "cpu_op", 60, 70, thread=2),
            event("gloo:all_reduce", "user_annotation", 30, 90, thread=3),
        ),
        rank=0,
        host="node1",
    ).trace
    # Operators compute from 20 to 30, 60 to 70 and 90 to 100.
    assert (found.communication, found.exposed, found.idle) == pytest.approx(
        (60 / 200, 50 / 200, 120 / 200)
    )


def test_on_a_gpu_kernels_decide_and_those_after_the_last_annotation_belong_to_the_steps() -> None:
    found = parse_trace(
        packed(
            *STEPS,
            event("aten::mm", "cpu_op", 0, 200),
            event("orch step 21", "gpu_user_annotation", 0, 390),
            event("sm90_gemm", "kernel", 50, 150, thread=11),
            event("Memcpy DtoD", "gpu_memcpy", 150, 170, thread=11),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "kernel", 130, 330, thread=12),
            event("sm90_gemm", "kernel", 340, 400, thread=11),
        ),
        rank=0,
        host="node1",
    ).trace
    assert found.of_device and found.step_s == pytest.approx(200e-6)
    assert (found.communication, found.exposed) == pytest.approx((200 / 400, 160 / 400))
    assert found.idle == pytest.approx((50 + 10) / 400)
    assert [(each.name, each.count) for each in found.top][:2] == [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1),
        ("sm90_gemm", 2),
    ]


def test_a_rank_alone_has_no_communication_and_no_share_of_it_beside_computing() -> None:
    found = parse_trace(packed(*STEPS, event("aten::mm", "cpu_op", 0, 200)), 0, "node1").trace
    assert (found.communication, found.exposed, found.idle, found.overlapped) == (0, 0, 0, None)


def test_what_is_no_event_is_left_out() -> None:
    odd = [
        None,
        5,
        {},
        {"ph": "X"},
        event("aten::mm", "cpu_op", 0, 10) | {"dur": -1},
        event("x", "cpu_op", 0, 1) | {"ts": "0"},
    ]
    odd += [
        event("x", "cpu_op", 0, 1) | {"dur": True},
        {**event("x", "cpu_op", 0, 1), "name": ["x"]},
    ]
    assert parse_trace(packed(*STEPS, *odd), 0, "n").trace.top == ()


def test_operators_that_nest_deeply_or_cross_have_no_negative_time() -> None:
    nested = [
        event(f"op{depth}", "cpu_op", depth * 0.01, 200 - depth * 0.01) for depth in range(2000)
    ]
    crossing = [
        event("a", "cpu_op", 0, 100, 2),
        event("b", "cpu_op", 50, 150, 2),
        event("b", "cpu_op", 50, 150, 2),
    ]
    assert all(
        each.share >= 0
        for each in parse_trace(packed(*STEPS, *nested, *crossing), 0, "n").trace.top
    )


WRONG = {
    "no gzip": b"{}",
    "empty": b"",
    "cut": packed(*STEPS)[:-9],
    "no JSON": gzip.compress(b"{"),
    "a list": gzip.compress(b"[]"),
    "no events": gzip.compress(b'{"traceEvents": 5}'),
    "no steps": packed(event("aten::mm", "cpu_op", 0, 1)),
    "steps without time": packed(event("orch step 1", "user_annotation", 5, 5)),
    "NaN": gzip.compress(b'{"traceEvents": [{"ts": NaN}]}'),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_is_no_trace_is_said(data: bytes) -> None:
    with pytest.raises(DataError, match="expected"):
        parse_trace(data, 0, "node1")


def test_a_trace_that_unpacks_to_more_than_it_may_is_refused_before_it_fills_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 20)
    with pytest.raises(DataError, match="expected a complete trace of at most 1 MiB"):
        parse_trace(gzip.compress(b"[" + b" " * (1 << 22) + b"]"), 0, "node1")


def test_more_events_than_a_trace_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_EVENTS", 3)
    with pytest.raises(DataError, match="expected at most 3 events, got 4"):
        parse_trace(packed(*STEPS, *STEPS), 0, "node1")
