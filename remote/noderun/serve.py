"""The node runner: it answers requests from standard input."""

import contextlib
import gc
import json
import os
import signal
import sys

from noderun.channel import reply
from noderun.files import Refused, why
from noderun.processes import in_step


def find_operation(name):
    """Return the function of an operation. Its part is loaded by the first request for it, as every
    connection starts this program anew, and most need few parts.
    """
    if name in ("get", "put"):
        from noderun.transfer import op_get, op_put

        return op_get if name == "get" else op_put
    if name == "facts":
        from noderun.facts import op_facts

        return op_facts
    if name == "spawn":
        from noderun.spawner import op_spawn

        return op_spawn
    if name == "undeploy":
        from noderun.undeploy import op_undeploy

        return op_undeploy
    from noderun.requests import OPERATIONS_ON_RUNS

    return OPERATIONS_ON_RUNS[name]


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
            find_operation(request["op"])(request)
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
    # What is compiled and loaded stays, and is neither looked through meanwhile nor cleared up at the
    # end: an eighth of what a connection costs a node.
    gc.set_threshold(50_000)
    serve_main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)
