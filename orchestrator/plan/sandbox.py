"""The sandbox in which templates are rendered, and the quoting of the values they print. Jinja2 is
used here and by the page.

A template sees only the values passed to it, nothing of Python: no files, no environment, no other
folder. Loops, products and output are bounded. Every printed value is quoted for the type of its
file, so a template writes a bare ``{{ value }}``.

>>> render_text("a.j2", {"a.j2": "echo {{ word }} {{ words }}"}, "sh", {"word": "a b", "words": ["c", "d e"]}, folder="mine")
"echo 'a b' c 'd e'"
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from orchestrator.errors import ConfigError, nearest

_OUTPUT_LIMIT = 1 << 20
_LOOP_LIMIT = 1_000_000
_COMPILED_LIMIT = 256
_HINT = "\0"
"""Between the message and the hint of an undefined name; no template can contain it."""

_SIGNS = {"end of print statement": "}}", "end of statement block": "%}"}
"""How a template writes what Jinja2 names in errors."""
_CLOSE = "close every {{ with }}, every {% with %}, and every if and for with endif and endfor"
_ONE = "{{ }} holds one expression, {% %} one statement; a ~ b joins two values"
_FAULTS = (
    (r"expected token (.*), got (.*)", r"expected \1, got \2", _ONE),
    (r"Expected an expression, got (.*)", r"expected an expression, got \1", _ONE),
    (r"unexpected end of template, expected (.*)", r"expected \1, got the end", _CLOSE),
    (
        r"Unexpected end of template\. Jinja was looking for the following tags: (.*)\. The .*",
        r"expected \1, got the end",
        _CLOSE,
    ),
    (
        r"Encountered unknown tag ('\w+')\. (?:You .* for|Jinja .* tags:) (.*)\. The .*",
        r"expected \2, got \1",
        _CLOSE,
    ),
    (
        r"Encountered unknown tag ('\w+').*",
        r"expected a statement such as if, for or set, got \1",
        "it is misspelt, or closes what is not open",
    ),
    (
        r"No (filter|test) named (.*)",
        r"expected a \1 of Jinja2, got \2",
        "see its list of built-in ones",
    ),
    (r"""unexpected (?:char )?(['"].['"]).*""", r"expected an expression, got \1", _ONE),
)
"""What Jinja2 says of a fault, what it means, and the remedy."""

_compiled: dict[tuple[str, str, str], CodeType] = {}
"""Code of templates by target, digest of the name and digest of the text: every node of every run
prints the same few.
"""


def render_text(
    template: str,
    sources: Mapping[str, str],
    target: str,
    context: Mapping[str, Any],
    *,
    folder: str,
) -> str:
    """Return the rendered text of a template. ``sources`` maps names of templates to texts,
    ``target`` is sh, json or yaml.

    Raises ConfigError of kind template_error naming ``folder``, template and line, and ConfigError
    if the template calls
    ``refuse``.
    """
    import jinja2

    pieces: list[str] = []
    left = _OUTPUT_LIMIT
    try:
        for piece in _sandbox(sources, target, context).get_template(template).generate(context):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise OverflowError(f"expected up to {_OUTPUT_LIMIT} characters, got more")
        text = "".join(pieces)
        if "\0" in text or "\r" in text:
            raise ValueError("expected text without NUL and carriage return")
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(error, f"{folder}/{error.name or template}") from error
    except jinja2.TemplateNotFound as error:
        where = f"{folder}/{_place(error, sources) or template}"
        hint = f"it has {', '.join(sources)}{nearest(str(error.name), sources)}"
        message = f"expected a template of this folder, got {error.name!r}"
        raise ConfigError(message, kind="template_error", where=where, hint=hint) from error
    except (
        jinja2.TemplateError,
        TypeError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        where = f"{folder}/{_place(error, sources) or template}"
        message, _, hint = str(error).partition(_HINT)
        raise ConfigError(message, kind="template_error", where=where, hint=hint) from error
    return text


def check_syntax(template: str, source: str, folder: str) -> ConfigError | None:
    """Return the syntax error of a template, None if it has none."""
    import jinja2

    try:
        _sandbox({template: source}, "sh", {}).parse(source, template)
    except jinja2.TemplateSyntaxError as error:
        return _syntax_error(error, f"{folder}/{template}")
    return None


def _syntax_error(error: Any, where: str) -> ConfigError:
    """Return a fault of a template in words of its signs, with the remedy."""
    message = str(error.message or "other syntax").rstrip(".")
    for name, sign in _SIGNS.items():
        message = message.replace(name, sign)
    hint = ""
    for pattern, words, remedy in _FAULTS:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            message, hint = found.expand(words), remedy
            break
    else:
        message = f"expected a template, got: {message}"
    where = f"{where}:{error.lineno}"
    return ConfigError(message, kind="template_error", where=where, hint=hint)


def _sandbox(sources: Mapping[str, str], target: str, context: Mapping[str, Any]) -> Any:
    """Return the Jinja2 environment of one template: only the folder's own templates, with bounded
    loops and products.
    """
    import jinja2
    from jinja2.bccache import Bucket
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Undefined(jinja2.StrictUndefined):
        @property
        def _undefined_message(self) -> str:
            holder, name = self._undefined_obj, str(self._undefined_name)
            if self._undefined_hint:  # such as access to an unsafe attribute
                return super()._undefined_message
            if isinstance(holder, HostVariables):
                hint = f"these are set: {_known_names(name, holder)}"
                return f"expected {name!r} in vars of {holder._host}, found none{_HINT}{hint}"
            if holder is jinja2.utils.missing:
                return f"expected a name that a template sees, got {name!r}{_HINT}it sees {_known_names(name, context)}"
            holders = [key for key, value in context.items() if value is holder]
            if holders and isinstance(holder, Mapping):
                return f"expected a name in {holders[0]}, got {name!r}{_HINT}{holders[0]} has {_known_names(name, holder)}"
            return super()._undefined_message

    class Compiled(jinja2.BytecodeCache):
        # Constants are quoted for the target when a template is compiled, and its name is where its
        # errors are said to be.
        def load_bytecode(self, bucket: Bucket) -> None:
            bucket.code = _compiled.get((target, bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket: Bucket) -> None:
            if len(_compiled) >= _COMPILED_LIMIT:
                _compiled.clear()
            if bucket.code:
                _compiled[target, bucket.key, bucket.checksum] = bucket.code

    environment = ImmutableSandboxedEnvironment(
        undefined=Undefined,
        loader=jinja2.FunctionLoader(
            lambda name: (sources[name], name, None) if name in sources else None
        ),
        bytecode_cache=Compiled(),
        finalize=_FINALIZE[target],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    left = _LOOP_LIMIT

    def count(*bounds: int) -> range:
        nonlocal left
        numbers = range(*bounds)
        left -= len(numbers)
        if left < 0:
            raise OverflowError(f"expected up to {_LOOP_LIMIT} iterations over all loops, got more")
        return numbers

    environment.globals.clear()
    environment.globals.update(range=count, dict=dict, namespace=jinja2.utils.Namespace)
    environment.intercepted_binops = frozenset(("*", "**"))
    environment.binop_table.update({"*": _product, "**": _power})
    return environment


def _known_names(name: str, names: Mapping[str, Any]) -> str:
    return f"{', '.join(names) or 'none'}{nearest(name, names)}"


def _product(left: Any, right: Any) -> Any:
    size = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    count = [value for value in (left, right) if isinstance(value, int)]
    if (size and count and size[0] * count[0] > _OUTPUT_LIMIT) or any(
        value.bit_length() > 1024 for value in count
    ):
        raise OverflowError(
            f"expected a product of up to {_OUTPUT_LIMIT} items, of factors up to 1024 bits"
        )
    return left * right


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > 1024:
        raise OverflowError("expected a power of at most 1024 bits")
    return base**exponent


def _place(error: BaseException, sources: Mapping[str, str]) -> str:
    """Return template and line of an error, from the traceback that Jinja2 rewrites."""
    place, step = "", error.__traceback__
    while step:
        if step.tb_frame.f_code.co_filename in sources:
            place = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return place


class _FromHome(str):
    """A path in the inventory that begins with ``~/``: the node's own shell expands it, because
    home directories differ.
    """


class HostVariables(dict[str, Any]):
    """The ``vars`` of a host by name; the error for a missing name includes the host."""

    def __init__(self, host: str, values: Mapping[str, Any]) -> None:
        super().__init__({name: _from_home(value) for name, value in values.items()})
        self._host = host  # templates cannot read names with a leading underscore


def command(words: Sequence[str]) -> Any:
    """Return the words of a command for a template. The node's own shell expands a word that begins
    with ``~/``.
    """
    values = [_from_home(word) for word in words]
    return values if len(values) > 1 else values[0]


def _from_home(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("~/"):
        return _FromHome(value)
    return value


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        raise TypeError(
            f"expected one value, got a mapping with {', '.join(map(str, value)) or 'nothing in it'}"
        )
    if callable(value):
        raise TypeError(
            "expected a value, got a function; call it with its arguments in parentheses"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _shell(value: Any) -> Any:
    """Quote one printed value; a list becomes its quoted words."""
    if isinstance(value, list | tuple):
        return " ".join(
            str(_shell(item)) if isinstance(item, _FromHome) else shlex.quote(_word(item))
            for item in value
        )
    if isinstance(value, _FromHome):
        return '"$HOME"/' + shlex.quote(value[2:])
    if _is_undefined(value):
        return value
    return shlex.quote(_word(value))


def _json(value: Any) -> Any:
    if _is_undefined(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_undefined(value: Any) -> bool:
    import jinja2

    return isinstance(value, jinja2.Undefined)


# JSON is YAML, so both use one way of printing a value.
_FINALIZE: Mapping[str, Callable[[Any], Any]] = {"sh": _shell, "json": _json, "yaml": _json}
