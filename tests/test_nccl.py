"""What NCCL wrote on eight H200 in four lab nodes, and shorter forms of the same lines."""

from __future__ import annotations

from pathlib import Path

from orchestrator.nccl import networks

SOCKET = Path(__file__).parent / "data/nccl/2.28.9-socket.log"


def test_a_real_log_without_infiniband_names_the_socket_and_its_interface() -> None:
    assert networks([SOCKET.read_bytes()]) == ("NET/Socket on eth0",)


def test_infiniband_is_named_and_a_looked_for_network_alone_is_not_a_choice() -> None:
    ib = b"n:7:7 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.2<0>\nn:7:7 [1] NCCL INFO Using network IB\n"
    assert networks([ib]) == ("NET/IB on mlx5_0",)
    assert networks([b"n:7:7 [1] NCCL INFO NET/IB : No device found.\n"]) == ()


def test_ranks_that_chose_differently_are_all_named() -> None:
    logs = [b"NCCL INFO Using network IB\n", b"NCCL INFO Using network Socket\r\n", b"NCCL INFO Using network AWS Libfabric\n"]
    assert networks(logs) == ("NET/AWS Libfabric", "NET/IB", "NET/Socket")
