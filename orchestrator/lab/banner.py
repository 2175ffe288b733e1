"""Wait until SSH servers answer. Run as ``python -I -S banner.py SECONDS ADDRESS:PORT…``; standard
library only.

It is a separate program because the nodes of a namespace lab can only be reached from inside the
lab.
"""

from __future__ import annotations

import socket
import sys
import time


def wait_for_banner(address: str, port: int, deadline: float) -> None:
    """Wait until the server has sent ``SSH-``.

    Raises OSError with the last reason when ``deadline`` (monotonic) passes.
    """
    while True:
        try:
            with socket.create_connection((address, port), timeout=2.0) as connection:
                if connection.recv(4) == b"SSH-":
                    return
                raise ConnectionError("closed before sending anything")
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"{address} port {port}: {error}") from error
        time.sleep(0.005)


def main() -> None:
    """Wait for all servers; exit with status 1 and the reason if one does not answer."""
    deadline = time.monotonic() + float(sys.argv[1])
    for target in sys.argv[2:]:
        address, _, port = target.rpartition(":")
        try:
            wait_for_banner(address, int(port), deadline)
        except OSError as error:
            sys.exit(f"no SSH server answers at {error}")


if __name__ == "__main__":
    main()
