"""Print the results of fio's JSON as lines: bandwidth, accesses per second and completion latency
of each direction.

    python fio_reading.py fio.json

fio must have run with group_reporting, so that its only job stands for all. Latencies are those
from submission to completion (``clat_ns``). The format of the file is that of fio 3; Python 3.6
reads it.
"""

import json
import sys
from pathlib import Path


def lines(text):
    """Return a line for each direction in which fio made accesses. Raises ValueError for a text
    that has no result.
    """
    if "{" not in text:
        raise ValueError("expected the JSON of fio, got none")
    jobs = json.loads(text[text.index("{") :])[
        "jobs"
    ]  # older versions write their notes in front of it
    if len(jobs) != 1:
        raise ValueError(f"expected one job, got {len(jobs)}; fio needs group_reporting")
    job = jobs[0]
    if job["error"]:
        raise ValueError(f"expected a job without error, got errno {job['error']}")
    printed = [
        line(direction, job[direction])
        for direction in ("read", "write")
        if job[direction]["total_ios"]
    ]
    if not printed:
        raise ValueError("expected accesses after the warm-up, got none")
    return printed


def line(direction, counted):
    """Return the line of a direction; fio counts nanoseconds and, for the whole job, milliseconds."""
    latency = counted["clat_ns"]
    mean_us, p99_us = latency["mean"] / 1000, latency["percentile"]["99.000000"] / 1000
    return (
        f"fio direction={direction} bytes_per_s={counted['bw_bytes']} iops={counted['iops']:.3f} "
        f"lat_mean_us={mean_us:.3f} lat_p99_us={p99_us:.3f} time_s={counted['runtime'] / 1000:.3f}"
    )


def main():
    """Print the lines of the file that is the only argument; exit with a message if it has no
    result.
    """
    path = sys.argv[1]
    try:
        printed = lines(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    except (KeyError, TypeError) as error:
        sys.exit(f"{path}: expected the JSON of fio 3, got one without {error}")
    print("\n".join([*printed, "fio end"]), flush=True)


if __name__ == "__main__":
    main()
