"""The JSON Schema of an inventory in orch's own format, from the models that check its hosts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.inventory.values import GroupValues, HostValues, MachineValues


class _InventoryFile(BaseModel):
    """An inventory of orch: the machines and how to reach them."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal[1] = Field(alias="schema", description="the version of the format")
    defaults: MachineValues = Field(
        MachineValues(), description="what holds for every host that does not say otherwise"
    )
    groups: dict[str, str | list[str] | GroupValues] = Field(
        {}, description="groups of hosts: [node1, '@other'], or with expect: and transport:"
    )
    hosts: dict[str, HostValues | None] = Field(
        {}, description="the hosts: node1, or several at once as node[1-4]"
    )
    secrets: list[str] = Field(
        [], description="names or patterns of variables under env: whose values are never shown"
    )
    base: str = Field("", description="another inventory, of whose hosts only env: is set here")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an inventory."""
    schema = _InventoryFile.model_json_schema(by_alias=True)
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            field.pop("default", None)  # of the models: they stand for keys that are not set
    return schema
