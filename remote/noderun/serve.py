"""The node runner: it answers requests from standard input."""

import json
import os
import signal
import sys

from noderun.channel import reply
from noderun.facts import op_facts
from noderun.files import Refused, why
from noderun.requests import op_drop, op_left, op_line, op_program, op_status, op_stop, op_tail
from noderun.transfer import op_get, op_put
from noderun.undeploy import op_undeploy

STAY_S = 15
OPERATIONS = {
    "drop": op_drop,
    "facts": op_facts,
    "get": op_get,
    "left": op_left,
    "line": op_line,
    "program": op_program,
    "put": op_put,
    "status": op_status,
    "stop": op_stop,
    "tail": op_tail,
    "undeploy": op_undeploy,
}


def serve_main():
    """Answer requests from standard input: one, or more while each says that another may follow within STAY_S."""
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
            reply(error=refusal.fields)  # no further requests: data for the refused one may still be on its way
            return
        except OSError as error:
            reply(error={"kind": "node_unfit", "message": "the node's system: " + why(error, request["op"])})
            return
        if not request.get("stay"):
            return
        os.chdir(home)
        signal.alarm(STAY_S)


if __name__ == "__main__":
    serve_main()
