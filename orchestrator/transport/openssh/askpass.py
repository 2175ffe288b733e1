"""The program that ssh starts to ask for a password or a code (``SSH_ASKPASS``): hands the question
to orch and prints the answer.

Runs on its own, with the standard library alone. Exit status 1: there is no answer.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Ask. ``SSH_ASKPASS_PROMPT`` is ``confirm`` for a yes or no, ``none`` for a mere notice, as
    for a key to be touched.
    """
    question = {
        "login": os.environ["ORCH_ASKPASS_LOGIN"],
        "kind": os.environ.get("SSH_ASKPASS_PROMPT", ""),
        "prompt": sys.argv[1] if len(sys.argv) > 1 else "",
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(os.environ["ORCH_ASKPASS"])
        line.sendall(json.dumps(question).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            data = line.recv(65536)
            if not data:
                return 1
            answer += data
    text = json.loads(answer)["answer"]
    if text is None:
        return 1
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
