"""A process that has done the expensive imports, and forks programs: a line of JSON in and out for
each.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.judge import LIMIT_S

__all__ = ["ForkServer"]


class ForkServer:
    """The process, from its start to `close`. It takes one order after the other."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )

    def ask(self, order: Mapping[str, Any], timeout_s: float) -> Any:
        """Return the answer to an order. Raises TimeoutError when there is none in time; then the
        process is closed.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            self.close()
            raise TimeoutError(f"no answer within {timeout_s:g} s to {order}")
        answer = self._process.stdout.readline()
        assert answer, (
            f"the process that forks programs has ended with {self._process.wait(LIMIT_S)}"
        )
        return json.loads(answer)

    def close(self) -> None:
        """End the process, and the programs that it waits for. May be called again."""
        if self._process.poll() is not None:
            return
        assert self._process.stdin and self._process.stdout
        for pid in (
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        ):
            os.kill(int(pid), 9)
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._process.stdin.close()
        self._process.stdout.close()
