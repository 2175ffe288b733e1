"""The evidence of a run, verified: exit records, logs, and the rank lines in them.

Every log must have the size and digest of its node's exit record, and every planned rank must have
logged its rank line exactly once on its planned node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.documents import short
from orchestrator.errors import DataError, OrchError, RunError
from orchestrator.inventory import fold
from orchestrator.logs import is_named
from orchestrator.logs.parse import Parsed
from orchestrator.logs.steps import RankAggregate, StepSample
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.plan.placement import Slot
from orchestrator.record import RunDir
from orchestrator.record.evidence import invalid
from orchestrator.record.manifest import Manifest
from orchestrator.record.node_record import ExitRecord, exit_record
from orchestrator.results.log_checks import digest, sizes_of, verify_statements
from orchestrator.results.node_logs import NodeLogs, read_logs
from orchestrator.results.notes import RANKS_NOT_VERIFIED


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """Exit records and logs of a run by host. ``holders``: the nodes whose logs have the samples,
    ``places``: these logs by host and name, ``aggregate``: the steps of all ranks or nodes where
    each prints its own.
    """

    run: RunDir
    planned: Manifest
    records: Mapping[str, ExitRecord]
    holders: tuple[Slot, ...]
    logs: Mapping[str, NodeLogs]
    places: Mapping[tuple[str, str], Parsed]
    aggregate: RankAggregate
    samples: tuple[StepSample, ...]

    @property
    def parsed(self) -> dict[str, Mapping[str, Parsed]]:
        """All logs by host and name."""
        return {host: node_logs.files for host, node_logs in self.logs.items()}

    @property
    def readings(self) -> dict[tuple[str, str], tuple[Mapping[str, str], ...]]:
        """The measurements that the logs of ``places`` print, as groups of their patterns."""
        return {place: log.readings for place, log in self.places.items()}

    @property
    def arrivals(self) -> tuple[tuple[float, int], ...]:
        """The times at which steps were seen in the logs of the first holder (`NodeLogs`)."""
        return self.logs[self.holders[0].host].arrivals

    @property
    def digest(self) -> str:
        """One digest of all logs that have the samples."""
        return digest(self.records[host].files[name].sha256 for host, name in self.places)


def read_evidence(run: RunDir, planned: Manifest) -> RunEvidence:
    """Read and verify the exit records and logs of a run."""
    grammar = planned.grammar
    records = _exit_records(run, planned)
    holders = holders_of(planned)
    hosts = frozenset(node.host for node in holders)
    logs, aggregate = read_logs(run, records, grammar, hosts)
    places = {
        (node.host, name): logs[node.host].files[name]
        for node in holders
        for name in logs[node.host].sampled
    }
    first = next((log.samples for log in places.values() if log.samples), ())
    samples = aggregate.samples() if aggregate else first
    return RunEvidence(run, planned, records, holders, logs, places, aggregate, samples)


def holders_of(planned: Manifest) -> tuple[Slot, ...]:
    """Return the nodes whose logs have the samples."""
    of_nodes = {"first": planned.slots[:1], "last": planned.slots[-1:]}
    return of_nodes.get(planned.grammar.nodes, planned.slots)


def _exit_records(run: RunDir, planned: Manifest) -> dict[str, ExitRecord]:
    """Return every node's exit record.

    The error of a node that failed by itself is raised before errors of nodes stopped because of
    it.
    """
    records = {}
    errors: list[OrchError] = []
    for node in planned.slots:
        try:
            record = exit_record(run, node.host)
            if record is None:
                hint = "run `orch collect`"
                raise invalid("expected an exit record, none was collected", node.host, hint=hint)
            records[node.host] = record
            _check_exit(record, run, node)
        except (DataError, RunError) as error:
            error.host = error.host or node.host
            errors.append(error)
    if errors:
        causes = [
            error
            for error in errors
            if error.host in records and records[error.host].state == "failed"
        ]
        raise (causes or errors)[0]
    return records


def _check_exit(record: ExitRecord, run: RunDir, node: Slot) -> None:
    for key, expected, got in (
        ("run_id", run.run_id, record.run_id),
        ("node_rank", node.node_rank, record.node_rank),
    ):
        if got != expected:
            raise invalid(f"expected {key} {expected!r}, got {short(got)}", node.host, "exit.json")
    if record.state in ("failed", "stopped"):
        reason = short(record.reason or record.how)
        raise RunError(
            f"the node reports {record.state}: {reason}",
            kind="rank_failed",
            host=node.host,
            where="exit.json",
        )
    if record.code != 0 or record.signal is not None:
        got = (
            f"state {short(record.state)}, code {short(record.code)}, signal {short(record.signal)}"
        )
        raise invalid(f"expected state 'finished' with code 0, got {got}", node.host, "exit.json")
    for rank in record.ranks:
        if rank.code != 0:
            how = short(rank.signal or rank.code)
            raise invalid(
                f"rank {rank.rank} ended with {how} in a run recorded as finished",
                node.host,
                "exit.json",
            )


def verify_sizes(parsed: Mapping[str, Mapping[str, Parsed]], spec: RunSpec) -> None:
    """Check what each log says of itself and of the run. A size that the program finds itself is
    not planned.
    """
    sizes = sizes_of(spec)
    if spec.step.batch_size_up_to:
        sizes = {
            name: size for name, size in sizes.items() if name not in ("batch_size", "global_batch")
        }
    for host, logs in parsed.items():
        for name, log in logs.items():
            try:
                verify_statements(log, sizes)
            except DataError as error:
                error.host, error.where = host, name
                raise


def verify_ranks(planned: Manifest, parsed: Mapping[str, Mapping[str, Parsed]]) -> list[Note]:
    """Check that each rank logged its rank line once, on its planned node. Return a qualification
    without a rank pattern.
    """
    grammar = planned.grammar
    if not grammar.rank:
        # Of metrics of ranks or nodes, `values.values_of` has verified that all have one.
        is_verified = grammar.metrics and all(
            metric.scope != "global" for metric in grammar.metrics
        )
        if not planned.measure.has_samples and (is_verified or planned.spec.world_size == 1):
            return []
        return [RANKS_NOT_VERIFIED()]
    patterns = grammar.rank_files or grammar.files
    world = planned.spec.world_size
    seen: dict[int, str] = {}
    for node in planned.slots:
        for name, log in parsed[node.host].items():
            if not is_named(name, patterns):
                continue
            for rank, world_size in log.ranks:
                if world_size not in (None, world):
                    raise invalid(
                        f"expected world size {world}, rank {rank} logged {world_size}",
                        node.host,
                        name,
                    )
                if rank not in node.ranks:
                    raise invalid(
                        f"expected rank lines of {_span(node.ranks)} on this node, got one of rank {rank}",
                        node.host,
                        name,
                    )
                if rank in seen:
                    raise invalid(
                        f"expected one rank line of rank {rank}, got another after {seen[rank]}",
                        node.host,
                        name,
                    )
                seen[rank] = f"{node.host}/{name}"
    missing = sorted(set(range(world)) - set(seen))
    if missing:
        hosts = fold(node.host for node in planned.slots if set(node.ranks) & set(missing))
        raise invalid(
            f"expected rank lines of {world} ranks, {len(missing)} are missing, first rank {missing[0]}",
            hosts,
        )
    return []


def _span(ranks: range) -> str:
    if len(ranks) > 1:
        return f"{ranks[0]}-{ranks[-1]}"
    if not ranks:
        return "none"
    return str(ranks[0])
