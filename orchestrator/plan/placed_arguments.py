"""Arguments that tell a program where its ranks are: in a template they become values of the run.

>>> from orchestrator.plan.command_line import training_command
>>> command = training_command("python /opt/t.py --coordinator_address=10.0.0.1:1234 --num_processes 2 --process_id 0", bool)
>>> places = place_arguments(command)
>>> list(places), place_value(places["--coordinator_address"], "10.0.0.1:1234")
(['--coordinator_address', '--num_processes', '--process_id'], '{{ master_addr }}:{{ master_port }}')
"""

from __future__ import annotations

from orchestrator.plan.command_line import TrainingCommand

_ADDRESSES = (
    "coordinator_address", "coordinator_addr", "coordinator_ip", "coordinator", "master_addr", "master_address",
    "master_ip", "dist_url", "init_method", "rdzv_endpoint",
)  # fmt: skip
_ADDRESS = "{{ master_addr }}"
_PORT = "{{ master_port }}"
_SIZES = {
    **dict.fromkeys(("master_port", "coordinator_port"), _PORT),
    **dict.fromkeys(("num_processes", "world_size"), "{{ spec.world_size }}"),
    **dict.fromkeys(("nnodes", "num_nodes", "num_hosts"), "{{ spec.nodes }}"),
    **dict.fromkeys(("node_rank", "host_id"), "{{ node.node_rank }}"),
}
_RANKS = {
    **dict.fromkeys(("process_id", "process_index", "rank"), "{{ node.first_rank + local_rank }}"),
    "local_rank": "{{ local_rank }}",
}
"""Known only where the launch script starts the ranks itself; torchrun gives them to its ranks as
variables.
"""


def place_arguments(command: TrainingCommand) -> dict[str, str]:
    """Return the options of a command that say where its ranks are, each with its value in a
    template.

    Without an option with an address there are none: ``--rank 8`` may be anything.
    """
    options = [word.partition("=")[0] for word in command.arguments if word.startswith("--")]
    names = {option: option.lstrip("-").replace("-", "_") for option in options}
    if not any(name in _ADDRESSES for name in names.values()):
        return {}
    known = {
        **dict.fromkeys(_ADDRESSES, _ADDRESS),
        **_SIZES,
        **({} if command.launcher == "torchrun" else _RANKS),
    }
    return {option: known[name] for option, name in names.items() if name in known}


def place_value(place: str, value: str) -> str:
    """Return the text of a value in a template; an address keeps its protocol, and its port if it
    has one.
    """
    protocol, colons, address = value.rpartition("://")
    port = f":{_PORT}" if place == _ADDRESS and ":" in address else ""
    if place == _ADDRESS:
        return f"{protocol}{colons}{place}{port}"
    return place
