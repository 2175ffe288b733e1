"""What NCCL wrote on eight H200 in four lab nodes, and lines in the formats of other versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs.nccl import Paths, fallbacks, networks, transport

SOCKET = Path(__file__).parents[1] / "data/nccl/2.28.9-socket.log"


def log(*lines: str) -> bytes:
    return "".join(f"n:7:7 [1] NCCL INFO {line}\n" for line in lines).encode()


def test_a_real_log_without_infiniband_names_the_socket_and_its_interface() -> None:
    assert networks([SOCKET.read_bytes()]) == ("NET/Socket on eth0",)


def test_infiniband_is_named_and_a_looked_for_network_alone_is_not_a_choice() -> None:
    ib = b"n:7:7 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.2<0>\nn:7:7 [1] NCCL INFO Using network IB\n"
    assert networks([ib]) == ("NET/IB on mlx5_0",)
    assert networks([b"n:7:7 [1] NCCL INFO NET/IB : No device found.\n"]) == ()


def test_ranks_that_chose_differently_are_all_named() -> None:
    logs = [
        b"NCCL INFO Using network IB\n",
        b"NCCL INFO Using network Socket\r\n",
        b"NCCL INFO Using network AWS Libfabric\n",
    ]
    assert networks(logs) == ("NET/AWS Libfabric", "NET/IB", "NET/Socket")


def test_a_real_log_tells_paths_channels_rings_and_trees() -> None:
    """Counted by eye in the log of one of eight ranks: two channels to its neighbour, two sends
    over the network.
    """
    found = transport([SOCKET.read_bytes()])
    assert found.paths == {"NET/Socket": 2, "P2P/CUMEM": 2}
    assert (
        found.coll_channels,
        found.p2p_channels,
        found.nvls_channels,
        found.rings,
        found.trees,
    ) == (2, 2, 0, 2, 2)
    assert (found.gdrdma, found.multicast, found.p2p_refused) == (False, None, False)
    assert found.words(nodes=4, world_size=8) == ("NET/Socket on eth0", "P2P/CUMEM", "2 channels")


def test_a_recorded_log_of_rccl_tells_the_same() -> None:
    """Counted by eye; RCCL ends its lines with the communicator."""
    found = transport([(SOCKET.parent / "rccl-2.16.5-mi250x.log").read_bytes()])
    assert found.paths == {"NET/Socket": 2, "P2P/IPC": 4}
    assert (found.rings, found.trees, found.gdrdma) == (4, 4, False)
    assert found.words(nodes=2, world_size=8) == ("NET/Socket on bond0", "P2P/IPC")


@pytest.mark.parametrize(("line", "paths", "gdrdma"), [
    ("Ring 01 : 3 -> 4 [send] via NET/IB/0/GDRDMA", {"NET/IB": 1}, True),  # 2.4
    ("Ring 00 : 0[0] -> 1[1] via P2P/direct pointer", {"P2P/direct pointer": 1}, None),
    ("Ring 00 : 0[1b000] -> 1[1c000] via direct shared memory", {"SHM": 1}, None),  # 2.5
    ("Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC/read", {"P2P/IPC": 1}, None),  # 2.7
    ("Channel 00/0 : 15[e00] -> 0[1b0] [send] via NET/IB/3(8)/GDRDMA/Shared", {"NET/IB": 1}, True),  # 2.12
    ("Channel 02 : 0[1b000] -> 1[1c000] via SHM/direct/direct", {"SHM": 1}, None),  # 2.13
    ("Channel 02/1 : 0[1b0] -> 1[1c0] via P2P/indirect/3[0]", {"P2P/indirect": 1}, None),
    ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA(PCI)", {"NET/AWS Libfabric": 1}, True),  # 2.28
    ("Channel 13/0 : 0[0] -> 1[1] via P2P/MNNVL/read/CE", {"P2P/MNNVL": 1}, None),
    ("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0", {}, False),
    ("Channel 00/02 :    0   1   2   3", {}, None),
    ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric comm 0x95cdeb0 nRanks 16", {"NET/AWS Libfabric": 1}, False),
    ("Channel 02 : 0[c1000] -> 1[c6000] via P2P/direct pointer comm 0x95cdeb0 nRanks 08", {"P2P/direct pointer": 1}, None),
    ("Channel 02 : 0[c1000] -> 1[c6000] via SHM/direct/direct comm 0x95cdeb0 nRanks 08", {"SHM": 1}, None),
])  # fmt: skip
def test_paths_of_all_versions_are_understood(
    line: str, paths: dict[str, int], gdrdma: bool | None
) -> None:
    found = transport([log(line)])
    assert (found.paths, found.gdrdma) == (paths, gdrdma)


@pytest.mark.parametrize(("line", "channels"), [
    ("24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, 32, 16)),
    ("24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer", (24, 32, 16)),
    ("12 coll channels, 16 p2p channels, 2 p2p channels per peer", (12, 16, None)),
])  # fmt: skip
def test_channels_of_all_versions_are_counted(line: str, channels: tuple[int | None, ...]) -> None:
    found = transport([log(line), log("1 coll channels, 1 p2p channels, 1 p2p channels per peer")])
    assert (found.coll_channels, found.p2p_channels, found.nvls_channels or None) == channels


def test_multicast_is_had_where_every_device_has_it() -> None:
    yes, no = (
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "NVLS multicast support is not available on dev 1",
    )
    assert [transport([log(*some)]).multicast for some in ([yes], [no], [yes, no], [])] == [
        True,
        False,
        False,
        None,
    ]


def test_a_run_on_one_node_does_not_name_the_network_that_it_does_not_use() -> None:
    lines = log(
        "Using network Socket",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM",
    )
    assert transport([lines]).words(nodes=1, world_size=2) == ("P2P/CUMEM",)
    unknown = transport(
        [log("Using network Socket", "24 coll channels, 16 p2p channels, 2 p2p channels per peer")]
    )
    assert unknown.words(nodes=1, world_size=2) == ("24 channels",)
    assert unknown.words(nodes=2, world_size=2) == ("NET/Socket", "24 channels")


def test_of_one_rank_nothing_is_told_as_nothing_travels() -> None:
    """What NCCL 2.28.9 wrote on one H200 with NVLS off."""
    found = transport([
        log("NCCL_NVLS_ENABLE set by environment to 0.", "NET/Socket : Using [0]eth0:10.11.0.2<0>", "Using network Socket",
            "64 coll channels, 64 collnet channels, 0 nvls channels, 64 p2p channels, 64 p2p channels per peer")
    ])  # fmt: skip
    assert found.networks == ("NET/Socket on eth0",) and found.coll_channels == 64
    assert found.words(nodes=1, world_size=1) == ()
    assert fallbacks(found, 1, 1, {"node1": 400.0}) == []
    assert fallbacks(found, 1, 2, {"node1": 400.0}) == [
        "NCCL does not use NVLS: NCCL_NVLS_ENABLE is 0"
    ]


IB = {"node1": 400.0, "node2": 400.0}
NO_IB: dict[str, float | None] = {"node1": None, "node2": None}


@pytest.mark.parametrize(("lines", "nodes", "gbit", "texts"), [
    (("NET/Socket : Using [0]eth0:10.0.0.2<0>", "Using network Socket"), 2, NO_IB,
     ["NCCL uses NET/Socket on eth0 between nodes, not InfiniBand"]),
    (("NET/Socket : Using [0]ib0:10.0.0.2<0>", "Using network Socket"), 2, NO_IB,
     ["NCCL uses NET/Socket on ib0 between nodes, not InfiniBand: that interface is IP over InfiniBand"]),
    (("Using network Socket",), 2, IB,
     ["NCCL uses NET/Socket between nodes, not InfiniBand, although node[1-2] have active ports"]),
    (("NCCL_IB_DISABLE set by environment to 1.", "Using network Socket"), 2, IB | {"node2": None},
     ["NCCL uses NET/Socket between nodes, not InfiniBand, although node1 has active ports; NCCL_IB_DISABLE is 1"]),
    (("Ring 00 : 0 -> 1 [send] via NET/Socket/0",), 2, NO_IB, ["NCCL uses NET/Socket between nodes, not InfiniBand"]),
    (("Using network Socket",), 1, IB, []),
    (("Using network Socket", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"), 1, IB,
     ["NCCL uses NET/Socket between GPUs of one node"]),
    (("Using network IB", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"), 2, IB,
     ["NCCL uses NET/IB without GDRDMA: data passes through host memory"]),
    (("Using network IB", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA"), 2, IB, []),
    (("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",), 1, NO_IB, []),
    (("NCCL_NVLS_ENABLE set by environment to 0.",), 1, NO_IB, ["NCCL does not use NVLS: NCCL_NVLS_ENABLE is 0"]),
    (("NCCL_NVLS_ENABLE set by environment to 1.",), 1, NO_IB, []),
    (("NCCL_P2P_DISABLE set by environment to 1", "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"), 1, NO_IB,
     ["NCCL uses shared memory between GPUs of a node, not P2P: NCCL_P2P_DISABLE is 1"]),
    (("P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
      "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"), 1, NO_IB,
     ["NCCL uses shared memory between GPUs of a node, not P2P: the driver forbids P2P between connected GPUs"]),
])  # fmt: skip
def test_a_fallback_is_told_and_nothing_else(
    lines: tuple[str, ...], nodes: int, gbit: dict[str, float | None], texts: list[str]
) -> None:
    assert fallbacks(transport([log(*lines)]), nodes, 2 * nodes, gbit) == texts


@given(
    st.lists(
        st.binary(max_size=200)
        | st.text(max_size=100).map(lambda text: log(text, f"Channel 00/0 : {text}")),
        max_size=3,
    )
)
def test_no_log_is_too_odd_to_be_read(logs: list[bytes]) -> None:
    found = transport(logs)
    assert all(
        isinstance(word, str) and word.isprintable() for word in found.words(nodes=2, world_size=4)
    )
    assert dataclasses.replace(found) == found and isinstance(found, Paths)
