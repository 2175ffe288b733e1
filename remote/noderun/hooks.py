"""The command that acts on what the node test has found."""

import os
import shlex
import signal
import socket
import subprocess
import time

from noderun.prctl import die_with_parent
from noderun.records import write_json

HOOK_S = 60


def name_of_node():
    """Return the name of this node: Slurm's where Slurm has started this."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def act(args, state, failed, path, present):
    """Write what is known, and run the command of ``--on-fail`` for each device that has failed,
    until it has ended with 0 once; with ``--show`` it is only shown. Returns {device: how it ended,
    or the command}.
    """
    done = state.setdefault("acted", {})
    for device in [one for one in done if one not in failed]:
        del done[device]
    write_json(path, state)  # the hook reads it, and Slurm may kill this process meanwhile
    if not args.on_fail:
        return {}
    if args.show:
        shown = failed or {device: "an example" for device in present[:1]}
        return {
            device: "would run: " + show_hook(args.on_fail, hook_variables(state, device, reason, path))
            for device, reason in shown.items()
        }  # fmt: skip
    ended = {}
    for device in [one for one in failed if one not in done]:
        code = run_hook(args.on_fail, hook_variables(state, device, failed[device], path))
        ended[device] = code if isinstance(code, str) else "ended with %d" % code
        if code == 0:
            done[device] = time.time()
            write_json(path, state)
    return ended


def hook_variables(state, device, reason, path):
    """Return what the command of ``--on-fail`` is told."""
    return {
        "ORCH_NODE": name_of_node(),
        "ORCH_DEVICE": device,
        "ORCH_SERIAL": state["devices"].get(device, {}).get("serial", ""),
        "ORCH_VERDICT": "failed",
        "ORCH_REASON": reason,
        "ORCH_EVIDENCE": path,
    }


def run_hook(command, variables):
    """Run a command by the shell, which gets these variables too, and return its exit status, or a
    text if it had none. What it prints goes to standard error.
    """
    process = subprocess.Popen(
        command,
        shell=True,
        env=dict(os.environ, **variables),
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        return process.wait(HOOK_S)
    except subprocess.TimeoutExpired:
        return "no end within %d s" % HOOK_S
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def show_hook(command, variables):
    """Return the command as a shell would take it, with its variables, to be read before it is set
    up.
    """
    words = ["%s=%s" % (name, shlex.quote(text)) for name, text in variables.items()]
    return " ".join(["env", *words, "sh", "-c", shlex.quote(command)])
