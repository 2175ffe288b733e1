"""Make the forward pass of DistributedDataParallel take longer by SLOWED_PERCENT of its own
processor time, as in a slower rank.

With SLOWED_CPU the process is bound to that processor.

Python imports this file at its start if its folder is in PYTHONPATH. Processor time and not the
clock: on a loaded machine a quota or a competitor of one process changes nothing, because all are
slowed alike.
"""

from __future__ import annotations

import os
import time
from typing import Any

if os.environ.get("SLOWED_CPU"):
    os.sched_setaffinity(0, {int(os.environ["SLOWED_CPU"])})
if float(os.environ.get("SLOWED_PERCENT") or 0):
    from torch.nn.parallel import DistributedDataParallel

    share = float(os.environ["SLOWED_PERCENT"]) / 100
    whole: Any = DistributedDataParallel.forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        """Compute, and then go on for a share of that time."""
        begun = time.thread_time()
        result = whole(self, *given, **named)
        ended = time.thread_time()
        until = ended + share * (ended - begun)
        while time.thread_time() < until:
            pass
        return result

    DistributedDataParallel.forward = forward  # type: ignore[method-assign]
