"""`orch schema`: print the JSON Schema of a file that users write, for editors and other programs."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from orchestrator.cli.options import print_json
from orchestrator.errors import ConfigError
from orchestrator.feature import providers


class Kind(str, Enum):
    """The files with a schema."""

    config = "config"
    framework = "framework"
    inventory = "inventory"
    published = "published"
    run = "run"


def schema(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="orch.yaml, framework.yaml, an inventory, published.json, or the file of orch bench --file."
        ),
    ],
) -> None:
    """Print the JSON Schema of a file, so that editors complete and check it."""
    if kind is Kind.framework:
        from orchestrator.plan.schema import json_schema
    elif kind is Kind.config:
        from orchestrator.record.defaults import json_schema
    elif kind is Kind.inventory:
        from orchestrator.inventory.json_schema import json_schema
    elif kind is Kind.published:
        json_schema = _schema_of_feature(kind.value)
    else:
        from orchestrator.plan.run_schema import json_schema
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema()})


def _schema_of_feature(kind: str) -> Callable[[], dict[str, Any]]:
    for module in providers("file_schema"):
        if kind == module.KIND:
            schema_of_file: Callable[[], dict[str, Any]] = module.json_schema
            return schema_of_file
    raise ConfigError(f"this installation of orch reads no file of the kind {kind}", where="schema")
