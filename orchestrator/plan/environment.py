"""The shell text that gives a run its environment: setup lines first, then the variables of orch,
framework, host and spec.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from orchestrator.devices.vendor import show_devices
from orchestrator.errors import ConfigError
from orchestrator.inventory import REFERENCE, Host, takes_references
from orchestrator.plan.framework import Framework

SETUP_FAILED = "setup: line "
"""The beginning of the message of a setup line that fails."""

# Set for every run: a fixed locale for numbers and messages in logs, unbuffered output, and the
# same hash seed on every rank. CUDA counts GPUs by speed, the fastest first, if it is not told
# otherwise; NVML and nvidia-smi, and so facts, --devices and telemetry, by PCI address
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars).
_BASE_ENV = {
    "LC_ALL": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
# Without it, libraries start a thread for each processor of the node in every rank; torchrun sets 1
# for several ranks, too.
_THREADS = "OMP_NUM_THREADS"
# Modules and conda use variables that are not set, and commands that fail, so -e, -u and pipefail
# are off for these lines. A launch script may have said set -x: its output until the shell options
# are restored belongs to these lines too.
_SETUP = """\
{{
orch_shell_options=$-
set +eu
orch_pipefail=$(shopt -po pipefail)
set +o pipefail
{lines}
$orch_pipefail
case $orch_shell_options in *e*) set -e ;; esac
case $orch_shell_options in *u*) set -u ;; esac
unset orch_shell_options orch_pipefail
}}{into}
"""


def visible_devices(host: Host) -> str:
    """Return the shell text that shows a program on a host the devices that its runs may use;
    nothing if these are all.
    """
    listed = host.vars.get("cuda_visible_devices")
    if listed is None:
        return ""
    return f"export CUDA_VISIBLE_DEVICES={shlex.quote(str(listed))}\n{show_devices(str(listed))}"


def env_file(
    framework: Framework | None,
    host: Host,
    chosen: Mapping[str, str],
    setup_log: str = "",
    *,
    threads: int = 0,
) -> str:
    """Return the shell file: the setup lines of host and framework, then the variables, which so
    win.

    A reference such as ``$PATH`` in a variable that `takes_references` is expanded on the node; all
    other values are literal. A setup line that fails ends the shell with a message that begins with
    `SETUP_FAILED`. Output of setup lines, this message included, is appended to ``setup_log`` if
    given. ``threads`` is the number per rank unless a variable or a setup line sets it; 0 leaves it
    to the launch script. Raises ConfigError if ``vars.setup`` is no text.
    """
    of_openmp = f"export {_THREADS}=${{{_THREADS}:-{threads}}}\n" if threads else ""
    return (
        setup_text(setup_lines(framework, host), setup_log)
        + of_openmp
        + "".join(
            f"export {name}={_with_references(value) if takes_references(name) else shlex.quote(value)}\n"
            for name, value in variables(framework, host, chosen).items()
        )
    )


def variables(framework: Framework | None, host: Host, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a run's variables on a host: orch's own, the framework's, the host's, the spec's. The
    last wins.
    """
    return _BASE_ENV | dict(framework.env if framework else {}) | dict(host.env) | dict(chosen)


def setup_lines(framework: Framework | None, host: Host) -> list[str]:
    """Return the texts that run first, each one or more lines of bash: the host's, then the
    framework's.

    Raises ConfigError if ``vars.setup`` is no text.
    """
    return [
        *host_setup(host),
        *(line for line in (framework.setup if framework else ()) if line.strip()),
    ]


def host_setup(host: Host) -> list[str]:
    """Return the texts of ``vars.setup``, each of one or more lines of bash. Raises ConfigError if
    it is no text.
    """
    value = host.vars.get("setup") or []
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        hint = "for example setup: [source /etc/profile, module load cuda]"
        raise ConfigError(
            "expected a line of bash, or a list of lines",
            where=f"vars.setup of host {host.name}",
            hint=hint,
        )
    return [line for line in lines if line.strip()]


def setup_text(lines: Sequence[str], log: str = "") -> str:
    """Return the shell text that executes the lines in the current shell; it ends the shell if it
    cannot write their log.
    """
    if not lines:
        return ""
    executed = []
    for number, line in enumerate(lines, 1):
        message = shlex.quote(
            f"{SETUP_FAILED}{number} ({' '.join(line.split())}) ended with exit code "
        )
        executed.append(f'eval {shlex.quote(line)} || {{ echo {message}"$?" >&2; exit 1; }}')
    return _SETUP.format(
        lines="\n".join(executed), into=f" >>{shlex.quote(log)} 2>&1 || exit 1" if log else ""
    )


def _with_references(value: str) -> str:
    """Return a shell word whose references are expanded; a variable that is not set on the node is
    empty.
    """
    words, end = [], 0
    for match in REFERENCE.finditer(value):
        if text := value[end : match.start()]:
            words.append(shlex.quote(text))
        words.append(f'"${{{match[1] or match[2]}-}}"')
        end = match.end()
    if text := value[end:]:
        words.append(shlex.quote(text))
    return "".join(words) or "''"
