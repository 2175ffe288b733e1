"""An engine hands out hosts for a while, says what it waits for, and takes them back.

A `Request` says as data what a bench wants. An `Engine` submits it, which makes a job, and
answers for that job until its end is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.inventory import Host
from orchestrator.record import Project

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job in its engine's words; whether its hosts can be used, or never will be."""

    words: str
    is_ready: bool = False
    is_over: bool = False


class Request(Protocol):
    """Hosts that a bench wants of an engine. ``options`` are kept in records."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the user, one each."""

    @property
    def text(self) -> str:
        """The options as one text, as the command line takes them."""

    @property
    def words(self) -> str:
        """The options for people."""

    @property
    def wait_s(self) -> float:
        """The longest wait for the hosts."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts in place of those that the engine will choose."""

    @property
    def host_names(self) -> list[str]:
        """The hosts by name, if the options name them; else none."""

    def possible_hosts(
        self, listed: Sequence[Host], *, devices_known: bool = True
    ) -> Iterator[tuple[Host, ...]]:
        """Yield what the hosts may be, the likeliest first."""

    def on(self, hosts: Sequence[str]) -> Request:
        """Return the same request for these hosts, with which a bench was planned."""


class Engine(Protocol):
    """One engine, which has no state of its own."""

    name: str
    """The option that asks for it, without dashes, and the head of its messages."""

    logs_go_with_job: bool
    """Whether nothing is left of a node when its job is over, as of a pod."""

    def request(self, text: str, nodes: int, spares: int) -> Request:
        """Return what the text of the option asks for. Raises ConfigError."""

    def recall(self, options: Sequence[str]) -> Request:
        """Return the request that a record has kept."""

    def describe(self, request: Any, bench_id: str) -> str:
        """Return what would be submitted, for people; without secrets."""

    def caution(self, request: Any) -> str:
        """Return what people should know before they submit this job from here; may be empty."""

    def check(self, request: Any) -> None:
        """Raise ConfigError if its programs or the user's rights are missing."""

    def submit(self, request: Any, bench_id: str) -> str:
        """Submit the job of a bench and return its name. Raises ConfigError if it is refused, and
        RunError of kind ``not_verified`` if it may have been accepted nevertheless.
        """

    def look(self, request: Any, job: str) -> JobState | None:
        """Return the state of a job, None if the engine does not know it, or no longer. Raises
        RunError if the engine does not answer.
        """

    def rival(self, request: Any, job: str) -> str:
        """Return an older job that has a part of its hosts and waits for others, which this one may
        hold; empty if there is none. Raises RunError if the engine does not answer.
        """

    def find(self, request: Any, bench_id: str) -> list[str]:
        """Return the jobs of a bench whose submission may have been interrupted."""

    def cancel(self, request: Any, job: str) -> None:
        """Ask for the end of a job, unless it is over."""

    def find_rest(self, request: Any, job: str) -> str:
        """Return the parts of a job that are still there; empty if its end is proven."""

    def ending(self, request: Any, job: str) -> str:
        """Return how a job of which nothing is left has ended."""

    def source(self, request: Any, job: str) -> str:
        """Return what ``--hosts`` calls the hosts of a job."""

    def source_here(self, hosts: Sequence[str]) -> str:
        """Return what ``--hosts`` calls the job that this process runs in, if it has these hosts."""

    def write_hosts(
        self, project: Project, source: str, bench_id: str, base: Base, say: Say
    ) -> tuple[str, str]:
        """Write the hosts of a source as an inventory, and return its file and the hosts. It is
        named after the source, or after the bench that has submitted the job.
        """

    def renew(self, project: Project, inventory: str, base: Base, say: Say) -> None:
        """Write an inventory of this engine anew, if its hosts may be others by now."""


Base = Callable[[Sequence[str]], str]
"""Returns the project's own inventory, if it lists these hosts; else an empty text."""
