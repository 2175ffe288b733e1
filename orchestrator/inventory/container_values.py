"""The keys of ``container:`` as pydantic models; `orchestrator.inventory.containers` says how they
go together.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from pydantic import Field

from orchestrator.inventory.containers import ENGINES, IMAGE
from orchestrator.inventory.fields import Limit, PathText, Strict, Truth, is_path, is_text, takes
from orchestrator.plural import join_words

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USER = re.compile(r"login|image|[0-9]+(:[0-9]+)?")
_MOUNT = re.compile(r"/[^:]*(:/[^:]*(:(ro|rw))?)?")


def _is_command(value: Any) -> bool:
    """Return True if a text is one or more words of a shell."""
    try:
        return is_path(value) and bool(shlex.split(value))
    except ValueError:
        return False


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(word, str) and is_text(word) and word.isprintable() for word in value
    )


def _matches(pattern: re.Pattern[str]) -> Any:
    return lambda value: (
        isinstance(value, str) and value.isprintable() and bool(pattern.fullmatch(value))
    )


def _one_of(*words: str) -> Any:
    return takes(" or ".join(words), lambda value: value in words)


_Command = Annotated[str, takes("a command as text", _is_command)]
_Words = Annotated[
    list[str],
    takes("a list of words", _is_words, "each in quotes if YAML would read it as something else"),
]
_Mount = Annotated[
    str,
    takes("/DIR, /DIR:/DIR or /DIR:/DIR:ro as text", _matches(_MOUNT), "both paths are absolute"),
]


class _Limits(Strict):
    memlock: Limit = Field(
        default=1, description="bytes that may be locked in memory; InfiniBand needs unlimited"
    )
    nofile: Limit = Field(default=1, description="open files")
    nproc: Limit = Field(default=1, description="processes of the user")
    stack: Limit = Field(default=1, description="bytes of the stack")


class ContainerValues(Strict):
    """The keys of ``container:``."""

    engine: Annotated[str, takes(join_words(ENGINES, "or"), lambda value: value in ENGINES)] = (
        Field(default="", description="the engine: docker, podman, apptainer or enroot")
    )
    image: Annotated[
        str, takes("an image as text", _matches(IMAGE), "without spaces and commas")
    ] = Field(
        default="",
        description="the image that is started for each run; it must be on the node already",
    )
    name: Annotated[str, takes("the name of a container", _matches(_NAME))] = Field(
        default="", description="a container of docker or podman that runs already"
    )
    wrap: Annotated[
        list[str],
        takes("a list of one or more words", lambda value: _is_words(value) and bool(value)),
    ] = Field(
        default=[],
        description="a command that is put in front of the launch script; {workdir} is the work directory",
    )
    program: _Command = Field(
        default="",
        description='how to start the engine, such as "sudo docker"; by default its name',
    )
    python: _Command = Field(
        default="",
        description="the interpreter inside, of the framework and of the rank wrapper: python3",
    )
    mounts: list[_Mount] = Field(
        default=[], description="folders of the node: /data, /data:/mnt, /data:/mnt:ro"
    )
    network: Annotated[str, takes("host or the name of a network", _matches(_NAME))] = Field(
        default="host", description="host, or a network of the engine"
    )
    ipc: Annotated[str, _one_of("host", "private")] = Field(
        default="host", description="host or private"
    )
    pid: Annotated[str, _one_of("host", "private")] = Field(
        default="host", description="process numbers: host or private"
    )
    shm_gib: Annotated[
        float | int,
        takes("GiB above 0", lambda value: type(value) in (int, float) and 0 < value < 1 << 20),
    ] = Field(default=1, description="the size of /dev/shm, with ipc: private")
    limits: _Limits = Field(
        default=_Limits(), description="limits of its processes: memlock, nofile, nproc, stack"
    )
    devices: list[PathText] = Field(
        default=[], description="devices such as /dev/infiniband or nvidia.com/gpu=all"
    )
    gpus: Truth = Field(
        default=True, description="give it the NVIDIA GPUs of a host that is measured on its GPUs"
    )
    user: Annotated[str, takes("login, image or UID:GID", _matches(_USER), "in quotes")] = Field(
        default="login",
        description="login: the user of the ssh connection; image: the image's own; or UID:GID",
    )
    options: _Words = Field(
        default=[], description="more words for the engine, in front of the image"
    )
