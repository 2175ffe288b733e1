"""The picture of README.md: speedup of ResNet-50 on four H200, from the summaries in docs/results.

python docs/scaling.py docs/img/scaling-h200.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
DTYPES = ("fp32", "bf16", "tf32", "fp16")


def main() -> None:
    """Write the picture to the path that is given."""
    figure = Figure(figsize=(6.4, 3.4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([1, 4], [1, 4], linestyle="dashed", color="0.6", label="ideal")
    for dtype in DTYPES:
        path = RESULTS / f"2026-11-22-h200-1n4g-graphs-{dtype}-b256.json"
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        sizes = [row["world_size"] for row in rows]
        speedups = [row["speedup"] for row in rows]
        axes.plot(
            sizes,
            speedups,
            marker="o",
            label=f"{dtype}: {rows[-1]['median_speed']:,.0f} images/s on four",
        )
    axes.set_xticks([1, 2, 4])
    axes.set_xlabel("H200, one node")
    axes.set_ylabel("speedup over one")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
