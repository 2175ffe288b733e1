"""The files of a new framework folder, as text: for a training command, or a small example that
runs anywhere.

Generated files pass ``orch framework check`` and run unchanged; comments say what to change for
another program.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from orchestrator.errors import ConfigError
from orchestrator.logs.metrics import BETTER, Metric
from orchestrator.plan.command_line import TrainingCommand
from orchestrator.plan.measures import LANGUAGE_MODEL, SAMPLES_PER_S, TOKENS_PER_S
from orchestrator.plan.placed_arguments import place_arguments as place_arguments
from orchestrator.plan.placed_arguments import place_value
from orchestrator.plan.scaffold_texts import (
    EVERY_RANK,
    FIRST_RANK,
    FRAMEWORK,
    HEAD,
    MEASURING,
    MICRO_BATCHES,
    MODULES,
    NO_LOG,
    NO_RANK,
    OPTIONS,
    PLACEHOLDER,
    PRINTED,
    PROGRAM,
    PROGRESS,
    RANK,
    RANKS,
    RESULT_LINES,
    SAMPLE,
    STEP_LINES,
    TOKEN_LINES,
    TOKEN_OPTIONS,
    TOKEN_PATTERNS,
    TOKEN_PLACEHOLDER,
    TORCHRUN,
    TRAINING,
)

_BATCH = re.compile(r"--(?:batch[-_]size|batch|bs)")
_STEPS = re.compile(r"--(?:(?:max|num|train)[-_])?(?:steps|iters|iterations)")
_SEQUENCE = re.compile(r"--(?:max[-_])?(?:seq|sequence|block|context)[-_](?:len|length|size)")
_MICRO_BATCHES = re.compile(r"--(?:grad|gradient)[-_]accum(?:ulation)?(?:[-_]steps)?")
_COUNTS = {
    "batch_size": _BATCH,
    "steps": _STEPS,
    "seq_len": _SEQUENCE,
    "micro_batches": _MICRO_BATCHES,
}
"""What orch counts, and the arguments that say it."""
_IMPORT = re.compile(
    rb"^[ \t]*(?:import|from)[ \t]+(torch|jax|tensorflow|paddle|mxnet)\b", re.MULTILINE
)
"""An import of a library whose version belongs to a measurement, in the source of a program."""
_RECORDED = "512"
"""Collectives that PyTorch's flight recorder keeps of each rank, for the examination of a hang."""
PROGRESS_MODULE = "rank_progress.py"


def example(name: str) -> dict[str, str]:
    """Return the files of a folder with a program of its own that needs nothing but Python."""
    command = (
        '{{ python }} -u {{ payload["train.py"] }} '
        "--batch {{ spec.batch_size }} --steps {{ spec.steps }} --size {{ options.size }}"
    )
    framework = FRAMEWORK.format(
        measures="",
        dtype="fp32",
        defaults=TRAINING.format(batch=8, steps=60, warmup=10),
        files=FIRST_RANK,
        lines=STEP_LINES.format(name=name),
        about=f"{name}: an example of a framework folder, which multiplies matrices in Python.",
        title=json.dumps(name),
        model=name,
        options=OPTIONS,
        env="",
        progress="",
        payload="train.py",
        probe=_probe(()),
        name=name,
        rank=RANK,
    )
    launch = HEAD + RANKS.replace("COMMAND", command)
    return {
        "framework.yaml": framework,
        "launch.sh.j2": launch,
        "sample.log": SAMPLE,
        "train.py": PROGRAM,
    }


def new_metric(text: str) -> Metric:
    """Return the metric that ``NAME:UNIT`` or ``NAME:UNIT:lower`` describes. Raises ConfigError for
    anything else.
    """
    name, _, rest = text.partition(":")
    unit, _, better = rest.partition(":")
    better = better or "higher"
    if (
        not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        or hasattr(dict, name)
        or not unit.strip()
        or better not in BETTER
    ):
        hint = "NAME has letters, digits and '_'; add :lower if smaller values are better"
        raise ConfigError(
            f"expected NAME:UNIT, such as bandwidth:GB/s, got {text!r}", where="--metric", hint=hint
        )
    if name == SAMPLES_PER_S.name:
        raise ConfigError(
            f"expected another name than {name!r}",
            where="--metric",
            hint="leave --metric out for a training",
        )
    if name == TOKENS_PER_S.name and (unit, better) != (TOKENS_PER_S.unit, "higher"):
        message = f"expected {name}:{TOKENS_PER_S.unit}, the speed of a program that trains a language model, got {text!r}"
        raise ConfigError(message, where="--metric", hint="or give the metric another name")
    return Metric(name, unit, better)


def for_command(
    name: str,
    typed: str,
    command: TrainingCommand,
    payload: Mapping[str, bytes],
    metrics: Sequence[Metric] = (),
    sample: str = "",
) -> dict[str, str]:
    """Return the files of a folder that runs a command: its own arguments, and ranks, addresses and
    ports from orch.

    ``typed`` is the command as it was typed. ``payload`` are the files to send by name, which the
    caller copies. Number of steps and batch size come from the arguments with these names, and go
    through ``--steps`` and ``--batch-size`` of orch. With ``metrics``, the program does not train:
    its lines have these; but `TOKENS_PER_S` alone is the rate in lines of steps, and tokens of a
    sample and micro-batches come from the arguments as well. ``sample`` is a log of the program, if
    there is one. Raises ConfigError for other metrics beside that rate.
    """
    has_tokens = TOKENS_PER_S.name in [metric.name for metric in metrics]
    if has_tokens and len(metrics) > 1:
        hint = "declare further results of its lines under log: metrics: in the new folder"
        raise ConfigError(
            f"expected {TOKENS_PER_S.name} alone, got others too", where="--metric", hint=hint
        )
    metrics = () if has_tokens else metrics
    # A program that does not train has no batch size of orch: its argument stays as it is.
    steps_take = ("batch_size", "seq_len", "micro_batches") if has_tokens else ("batch_size",)
    arguments = _Arguments(command, payload, () if metrics else steps_take)
    is_python = command.launcher != "program"
    libraries = _libraries(command, payload)
    entries = list(dict.fromkeys(map(_entry, payload)))
    steps = arguments.numbers["steps"] or (1 if metrics else 100)
    env = dict(command.env)
    if "torch" in libraries:
        env.setdefault("TORCH_FR_BUFFER_SIZE", _RECORDED)
    if metrics:
        defaults = MEASURING.format(steps=steps)
        lines, placeholder = (
            _result_lines(name, metrics),
            NO_LOG + "".join(f"{metric.name}: 1.5\n" for metric in metrics),
        )
    else:
        batch = arguments.numbers["batch_size"]
        defaults = TRAINING.format(batch=batch or 1, steps=steps, warmup=min(10, steps - 1))
        lines = (TOKEN_LINES if has_tokens else STEP_LINES).format(
            name=name, patterns=TOKEN_PATTERNS
        )
        placeholder = NO_LOG + (TOKEN_PLACEHOLDER if has_tokens else PLACEHOLDER)
    measures, options = "measures: readings\n" if metrics else "", ""
    if has_tokens:
        measures = f"measures: {LANGUAGE_MODEL}\n"
        several = arguments.numbers["micro_batches"]
        options = TOKEN_OPTIONS.format(
            seq_len=arguments.numbers["seq_len"] or 1,
            counted=", micro_batches: micro_batches" if several else "",
            micro_batches=MICRO_BATCHES.format(several) if several else "",
        )
    framework = FRAMEWORK.format(
        about=f"{name}: made from the command {json.dumps(typed)[1:-1]}",
        title=json.dumps(name),
        model=name,
        measures=measures,
        dtype="none" if metrics else "fp32",
        defaults=defaults,
        files=EVERY_RANK if metrics else FIRST_RANK,
        lines=lines,
        options=options,
        env=_env(env),
        progress=PROGRESS if is_python else "",
        payload=", ".join(map(json.dumps, [*entries, PROGRESS_MODULE] if is_python else entries)),
        probe=_probe(libraries),
        name=name,
        rank=NO_RANK,
    )
    script = _script(command, arguments.shown)
    return {
        "framework.yaml": framework,
        "launch.sh.j2": script,
        "sample.log": sample or placeholder,
    }


def hook(command: TrainingCommand, where: str) -> str:
    """Return how a program reports its steps, in words; empty unless it is Python. ``where`` is the
    file that nodes get.
    """
    if command.launcher == "program":
        return ""
    lines = f'import {PROGRESS_MODULE.removesuffix(".py")}; rank_progress.mark(step, "step") where each step begins'
    return f"to have a hang reported with the rank that is its cause, write two lines into {where}: {lines}"


def _script(command: TrainingCommand, arguments: str) -> str:
    """Return the launch script."""
    program = command.script or command.program
    head, start = HEAD, _literal(program)
    if command.module:
        start = f"-m {shlex.quote(command.module)}"
    elif command.is_here:
        start = _payload_path(_base(program))
    if command.launcher == "program":
        interpreter = f"{command.shell} " if command.shell else ""
        if command.is_here and not command.shell:  # files of a payload are not executable
            head += f"install -m 0700 {start} program\n"
            start = "./program"
    else:
        flags = " ".join(
            map(_literal, command.flags if "-u" in command.flags else ("-u", *command.flags))
        )
        interpreter = f"{{{{ python }}}} {flags} "
        if not (
            command.script and command.is_here
        ):  # Python looks for modules beside a script, not beside others
            head += MODULES
    words = f"{interpreter}{start} {arguments}".rstrip()
    return (head + (TORCHRUN if command.launcher == "torchrun" else RANKS)).replace(
        "COMMAND", words
    )


def _result_lines(name: str, metrics: Sequence[Metric]) -> str:
    readings, declared = [], []
    for metric in metrics:
        spellings = "|".join(
            dict.fromkeys((metric.name, metric.name.capitalize(), metric.name.upper()))
        )
        readings.append(f"    - '{PRINTED.format(name=metric.name, spellings=spellings)}'")
        values = (
            f"unit: {json.dumps(metric.unit)}, better: {metric.better}, scope: rank, across: mean"
        )
        declared.append(f"    {metric.name}: {{{values}}}")
    return RESULT_LINES.format(name=name, readings="\n".join(readings), metrics="\n".join(declared))


def _libraries(command: TrainingCommand, payload: Mapping[str, bytes]) -> list[str]:
    """Return the libraries whose versions matter: the program's imports, and its launcher's
    library.
    """
    found = {"torch"} if command.launcher == "torchrun" else set[str]()
    for file, content in payload.items():
        if file.endswith(".py") and command.launcher != "program":
            found |= {match[1].decode() for match in _IMPORT.finditer(content)}
    return sorted(found)


def _probe(libraries: Sequence[str]) -> str:
    if not libraries:
        return "'import json, platform; print(json.dumps({\"python\": platform.python_version()}))'"
    versions = ", ".join(f'"{library}": {library}.__version__' for library in libraries)
    cuda = ', "cuda": torch.version.cuda' if "torch" in libraries else ""
    return f"'import json, {', '.join(libraries)}; print(json.dumps({{{versions}{cuda}}}))'"


def _env(env: Mapping[str, str]) -> str:
    lines = "".join(f"  {variable}: {json.dumps(value)}\n" for variable, value in env.items())
    if not env:
        return ""
    return f"\n# Variables of every run; those of the inventory win.\nenv:\n{lines}"


def _entry(file: str) -> str:
    """Return the entry of ``payload:`` to which a file belongs: itself, or the folder/ that it is
    in.
    """
    top, slash, _ = file.partition("/")
    return top + slash


def _payload_path(file: str) -> str:
    return f"{{{{ payload[{json.dumps(file)}] }}}}"


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _literal(word: str) -> str:
    """Return a word for a shell script that is a template as well."""
    if re.search(r"\{[{%#]", word):
        return f"{{{{ {json.dumps(word)} }}}}"
    return shlex.quote(word)


class _Arguments:
    """The arguments of a command as they are in the template, ``shown``: files that are sent by
    their path on a node, places of ranks by orch's values, and so the number of steps and ``more``,
    whose ``numbers`` are 0 without."""

    def __init__(
        self, command: TrainingCommand, payload: Mapping[str, bytes], more: Sequence[str]
    ) -> None:
        self.numbers = dict.fromkeys(_COUNTS, 0)
        self._inputs = {word for word in command.inputs if _base(word) in payload}
        self._more = more
        self._places = place_arguments(command)
        shown, option = list[str](), ""
        for word in command.arguments:
            name, equals, value = word.partition("=")
            if equals and name.startswith("-"):
                shown.append(f"{shlex.quote(name)}={self._value(name, value)}")
                option = ""
            elif word.startswith("-") or not option:
                shown.append(self._value("", word))
                option = word if word.startswith("-") else ""
            else:
                shown.append(self._value(option, word))
                option = ""
        self.shown = " ".join(shown)

    def _value(self, option: str, value: str) -> str:
        if value in self._inputs:
            return _payload_path(_base(value))
        if option in self._places:
            return place_value(self._places[option], value)
        named = (
            key
            for key, form in _COUNTS.items()
            if form.fullmatch(option) and key in ("steps", *self._more)
        )
        key = next(named, "")
        if key and value.isdecimal() and int(value) > 0:
            self.numbers[key] = int(value)
            return f"{{{{ {'spec' if key in ('batch_size', 'steps') else 'options'}.{key} }}}}"
        return _literal(value)
