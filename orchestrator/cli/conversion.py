"""Values of the command line that need no conversion, and pass without the library for it.

Typer 0.29 builds a validator of pydantic for each option of a command, given or not: half of the
processor time of a start. Earlier versions have nothing of this, and are left as they are.
"""

from __future__ import annotations

from typing import Any


class _Conversion:
    """What typer asks to convert a parameter's values, in place of its own until one needs it."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the function of the command takes it: nothing and a text as they are,
        others as typer converts them.
        """
        takes_several = param.multiple or param.nargs != 1
        if value is None:
            return () if takes_several else None
        kind = param.type_descriptor
        is_text = kind.annotation is str and kind.parameter_info.parser is None
        if is_text and not takes_several and type(value) is str:
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class FewConversions:
    """Mixin of a command for which typer converts only the values that need it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if hasattr(param, "get_runtime_param") and param._runtime_param is None:
                param._runtime_param = _Conversion()
        return params
