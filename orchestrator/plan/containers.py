"""The container in which a node starts its launch script: the files ``container.sh`` and
``container.json`` of a run.

The container is around the launch script, never around each rank, so that launchers see all their
ranks. ``container.sh`` runs the command that follows it; a run gives it the launch script,
preflight a program that looks around inside. Variables of a run are not on the engine's command
line, where everyone could read their values: ``env.sh`` is in the mounted work directory, and the
launch script sources it inside. Only the marks by which orch finds processes are passed by name.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.inventory import Host
from orchestrator.inventory.containers import NO_CONTAINER, OBJECTS, chosen, merge_values
from orchestrator.logs import SETUP_LOG
from orchestrator.plan.environment import host_setup, setup_text

SCRIPT, RECORD = "container.sh", "container.json"
INSIDE = """\
umask 077
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$(cd ../.. && pwd)/inductor}"
"""
"""For the first lines of ``env.sh``. Inside, engines do not keep the umask of the supervisor, and
most set 022; and /tmp, where inductor keeps the kernels that it compiles, ends with the container.
In the node's folder of the work directory the next run finds them; their names there depend on the
versions and the device that they were compiled for."""
_STOP_TIMEOUT_S = 10
_UP = "../../../.."
"""From the directory of a run to the work directory."""
_HEAD = """\
#!/bin/bash
# Runs the command that follows in {description}.
set -euo pipefail
{setup}workdir=$(cd {up} && pwd -P)
run=$(pwd -P)
"""
_IN_RUN = """bash -c 'cd "$0" && exec "$@"' "$run" "$@\""""


@dataclass(frozen=True, slots=True)
class Container:
    """The container in which a host's launch scripts start.

    ``values`` are the `ContainerValues` that are set. ``with_gpus``: it gets the NVIDIA GPUs of its
    node.
    """

    values: Mapping[str, Any]
    setup: Sequence[str] = ()
    with_gpus: bool = False

    @property
    def engine(self) -> str:
        """The engine: docker, podman, apptainer, enroot, or wrap for any other command."""
        if "wrap" in self.values:
            return "wrap"
        return str(self.values["engine"])

    @property
    def is_object(self) -> bool:
        """Return whether the engine keeps the container as an object.

        Its processes are then not children of the command that starts it.
        """
        return self.engine in OBJECTS

    @property
    def is_standing(self) -> bool:
        """Return whether the container runs already."""
        return "name" in self.values

    @property
    def description(self) -> str:
        """Its description, such as ``a container of docker, image pt:24.05``."""
        if self.engine == "wrap":
            return f"what {self.values['wrap'][0]} makes"
        kind, article = ("name", "the container") if self.is_standing else ("image", "a container")
        return f"{article} of {self.engine}, {kind} {self.values[kind]}"

    @property
    def program(self) -> tuple[str, ...]:
        """The words that start the engine; none for a wrap."""
        if self.engine == "wrap":
            return ()
        return tuple(shlex.split(self.values.get("program") or self.engine))

    @property
    def python(self) -> str:
        """The command that starts the interpreter inside."""
        return str(self.values.get("python") or "python3")

    def script(
        self,
        name: str,
        labels: Mapping[str, str],
        variables: Mapping[str, str],
        *,
        of_a_run: bool = True,
    ) -> str:
        """Return the shell text that runs its arguments inside, from a run's directory or the work
        directory.

        ``name`` names a new container, or marks the processes in a running one; ``variables`` are
        set inside.
        """
        setup = setup_text(self.setup, f"logs/{SETUP_LOG}" if of_a_run else "")
        head = _HEAD.format(description=self.description, setup=setup, up=_UP if of_a_run else ".")
        return head + self._command(name, labels, variables, of_a_run)

    def record(self, name: str, labels: Mapping[str, str]) -> str:
        """Return the record from which a run's supervisor finds and ends the container, as JSON."""
        return (
            json.dumps(
                {**self._template_names(name), "labels": dict(labels)}, indent=1, sort_keys=True
            )
            + "\n"
        )

    def look(self, name: str, program: str) -> dict[str, Any]:
        """Return the facts that preflight needs to start ``program`` inside, as a run would be
        started.
        """
        script = self.script(name, {"orch.preflight": name}, {}, of_a_run=False)
        return {
            **self._template_names(name),
            "object": self.is_object,
            "what": self.description,
            "script": script,
            "look": program,
        }

    def _template_names(self, name: str) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "program": list(self.program),
            "setup": setup_text(self.setup),
            "python": shlex.split(self.python),
            "name": name,
            "standing": self.values.get("name", ""),
            "image": self.values.get("image", ""),
        }

    def _command(
        self, name: str, labels: Mapping[str, str], variables: Mapping[str, str], of_a_run: bool
    ) -> str:
        marks = {**variables, "ORCH_CONTAINER": name}
        if self.engine == "wrap":
            quoted = map(_quote, self.values["wrap"])
            exports = "".join(
                f"export {key}={shlex.quote(value)}\n" for key, value in marks.items()
            )
            return f"{exports}exec {' '.join(quoted)} {_IN_RUN}\n"
        sets = [f"--env {shlex.quote(f'{key}={value}')}" for key, value in marks.items()]
        lines = {
            "docker": self._of_object,
            "podman": self._of_object,
            "apptainer": self._of_apptainer,
            "enroot": self._of_enroot,
        }[self.engine](name, labels, sets, of_a_run)
        return "exec " + " \\\n  ".join(lines) + "\n"

    def _of_object(
        self, name: str, labels: Mapping[str, str], sets: Sequence[str], of_a_run: bool
    ) -> list[str]:
        program, values = shlex.join(self.program), self.values
        user = values.get("user", "login")
        who = [] if user == "image" else [f"--user {user}"]
        if user == "login":
            who = ['--user "$(id -u):$(id -g)"']
            sets = [*sets, '--env "USER=$(id -un)"', '--env "HOME=$run"']
        options = list(map(shlex.quote, values.get("options", [])))
        interactive = "" if of_a_run else " --interactive"
        if self.is_standing:
            return [
                f"{program} exec{interactive}",
                *who,
                '--workdir "$run"',
                *sets,
                *options,
                f'{shlex.quote(values["name"])} "$@"',
            ]
        private = {key: values.get(key, "host") == "private" for key in ("ipc", "pid")}
        lines = [f"{program} run{interactive} --rm --restart no --pull never", f"--name {name}"]
        lines += [f"--label {shlex.quote(f'{key}={value}')}" for key, value in labels.items()]
        lines += ["--cidfile container.id"] if of_a_run else []
        lines += [f"--stop-timeout {_STOP_TIMEOUT_S}", f"--network {values.get('network', 'host')}"]
        lines += [f"--{key} host" for key, is_private in private.items() if not is_private]
        # With the process numbers of the node the launch script is no PID 1, and needs nobody to
        # reap for it.
        lines += ["--init"] if private["pid"] else []
        lines += [f"--shm-size {values['shm_gib']:g}g"] if "shm_gib" in values else []
        lines += [
            f"--ulimit {key}={_limit(value)}" for key, value in values.get("limits", {}).items()
        ]
        lines += [self._gpus] if self.with_gpus else []
        lines += [f"--device {shlex.quote(device)}" for device in values.get("devices", [])]
        lines += [*who, *self._mounts("--volume"), '--workdir "$run"', *sets]
        if self.engine == "podman" and user == "login":
            # Only without root is the user of the login another one inside.
            lines.append('$([ "$(id -u)" = 0 ] || echo --userns keep-id)')
        return [*lines, *options, f'{shlex.quote(values["image"])} "$@"']

    @property
    def _gpus(self) -> str:
        if self.engine == "docker":
            return "--gpus all"
        return "--device nvidia.com/gpu=all"

    def _mounts(self, option: str) -> list[str]:
        mounts = [
            mount if ":" in mount else f"{mount}:{mount}" for mount in self.values.get("mounts", [])
        ]
        return [
            f'{option} "$workdir:$workdir"',
            *(f"{option} {shlex.quote(mount)}" for mount in mounts),
        ]

    def _of_apptainer(
        self, name: str, labels: Mapping[str, str], sets: Sequence[str], of_a_run: bool
    ) -> list[str]:
        lines = [
            f"{shlex.join(self.program)} exec --cleanenv",
            *(["--nv"] if self.with_gpus else []),
            *self._mounts("--bind"),
        ]
        options = map(shlex.quote, self.values.get("options", []))
        return [
            *lines,
            '--pwd "$run"',
            *sets,
            *options,
            f'{shlex.quote(self.values["image"])} "$@"',
        ]

    def _of_enroot(
        self, name: str, labels: Mapping[str, str], sets: Sequence[str], of_a_run: bool
    ) -> list[str]:
        lines = [f"{shlex.join(self.program)} start --rw", *self._mounts("--mount"), *sets]
        options = map(shlex.quote, self.values.get("options", []))
        return [*lines, *options, shlex.quote(self.values["image"]), _IN_RUN]


def container_name(run_id: str, node_rank: int) -> str:
    """Return the name of the container of one node of a run. Nodes of a lab may share an engine."""
    return f"orch-{run_id}-{node_rank}"


def container_of(host: Host, choice: str, *, with_data: bool = False) -> Container | None:
    """Return the container for launch scripts on a host; None for the host itself.

    ``choice`` is the spec's, ``ENGINE:IMAGE``. It replaces image and engine of the inventory, whose
    mounts, limits and devices stay. ``with_data``: mount the data set too.
    """
    if choice == NO_CONTAINER:
        return None
    values = (
        merge_values([host.container, chosen(choice, "--container")])
        if choice
        else dict(host.container)
    )
    if choice and values["engine"] != host.container.get("engine"):
        values.pop("program", None)
    if not {"image", "name", "wrap"} & set(values):
        return None
    if with_data and str(data := host.vars.get("data_dir", "")).startswith("/"):
        values["mounts"] = [*values.get("mounts", []), f"{data}:{data}:ro"]
    with_gpus = host.device == "cuda" and bool(values.get("gpus", True))
    return Container(values, host_setup(host), with_gpus)


def inside(host: Host, container: Container | None) -> Host:
    """Return the host as a launch script in the container finds it: with the interpreters of the
    container.
    """
    if container is None:
        return host
    setup_done = {key: value for key, value in host.vars.items() if key != "setup"}
    return replace(
        host, vars={**setup_done, "python": container.python, "runner_python": container.python}
    )


def _limit(value: int | str) -> str:
    return "-1" if value == "unlimited" else f"{value}:{value}"


def _quote(word: str) -> str:
    """Quote a word of a wrap for a shell, except for the path of the work directory."""
    return (
        '"$workdir"'.join(shlex.quote(part) if part else "" for part in word.split("{workdir}"))
        or "''"
    )
