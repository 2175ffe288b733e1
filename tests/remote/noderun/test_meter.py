"""What a node's kernel counts of a run beside its logs."""

from __future__ import annotations

from pathlib import Path

from noderun.meter import link_losses


def test_lost_links_are_counted_by_every_kernel_that_counts_them_and_not_for_virtual_interfaces(
    tmp_path: Path,
) -> None:
    kernels = {
        "eth0": {"carrier_down_count": "3", "carrier_changes": "7"},
        "eth1": {"carrier_changes": "5"},
        "eth2": {},
    }
    for name, files in (
        kernels | {"veth4a": {"carrier_down_count": "9"}, "docker0": {"carrier_down_count": "1"}}
    ).items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(f"{text}\n")
    assert link_losses(str(tmp_path)) == {"eth0": 3, "eth1": 2}
    assert link_losses(str(tmp_path / "none")) == {}
