"""The node runner: it answers requests from standard input."""

import contextlib
import json
import os
import signal
import sys

from noderun.channel import reply
from noderun.facts import op_facts
from noderun.files import Refused, why
from noderun.processes import in_step
from noderun.requests import (
    op_drop,
    op_examine,
    op_left,
    op_line,
    op_program,
    op_recent,
    op_status,
    op_stop,
    op_tail,
)
from noderun.spawner import op_spawn
from noderun.transfer import op_get, op_put
from noderun.undeploy import op_undeploy

OPERATIONS = {
    "drop": op_drop,
    "examine": op_examine,
    "facts": op_facts,
    "get": op_get,
    "left": op_left,
    "line": op_line,
    "program": op_program,
    "put": op_put,
    "recent": op_recent,
    "spawn": op_spawn,
    "status": op_status,
    "stop": op_stop,
    "tail": op_tail,
    "undeploy": op_undeploy,
}


def serve_main():
    """Answer requests from standard input: one, or more while each says for how many seconds
    another may follow.
    """
    if in_step():
        begin_step()
    home = os.getcwd()
    while True:
        line = sys.stdin.buffer.readline()
        signal.alarm(0)  # set while this program was being received, or below
        if not line:
            return
        request = json.loads(line.decode())
        os.umask(0o077)
        sys.stdout.buffer.write(b"ORCH " + request["nonce"].encode() + b"\n")
        sys.stdout.buffer.flush()
        try:
            OPERATIONS[request["op"]](request)
        except Refused as refusal:
            reply(
                error=refusal.fields
            )  # no further requests: data for the refused one may still be on its way
            return
        except OSError as error:
            reply(
                error={
                    "kind": "node_unfit",
                    "message": "the node's system: " + why(error, request["op"]),
                }
            )
            return
        if not request.get("stay"):
            return
        os.chdir(home)
        signal.alarm(request["stay"])


def begin_step():
    """Make a task of Slurm what a session of sshd is: with the variables of its user on this node,
    in the home directory.
    """
    import pwd

    # Slurm gives a job that ends some time until SIGKILL, in which records and logs can be fetched.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    user = pwd.getpwuid(os.getuid())
    for name, value in (
        ("HOME", user.pw_dir),
        ("USER", user.pw_name),
        ("LOGNAME", user.pw_name),
        ("SHELL", user.pw_shell),
    ):
        os.environ.setdefault(name, value)
    with contextlib.suppress(OSError):  # as sshd, which stays in / without a home directory
        os.chdir(user.pw_dir)


if __name__ == "__main__":
    serve_main()
