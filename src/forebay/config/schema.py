"""The configuration as JSON Schema, for editors and for programs that write configurations."""

from __future__ import annotations

from typing import Any

from forebay.config.dump import finite
from forebay.config.run import RunConfig

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# The last word of a key is its unit.
_UNITS = {"s": "seconds", "bytes": "bytes", "tokens": "tokens", "fraction": "0 to 1", "probability": "0 to 1"}
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def json_schema() -> dict[str, Any]:
    """Return the schema of a configuration file: every key with its meaning, type, limits, unit and default.

    It says what each key may be; what combinations cannot work, only `forebay config check` says.

    References:
        JSON Schema, draft 2020-12.
    """
    schema: dict[str, Any] = finite(RunConfig.model_json_schema(mode="validation"))
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "Another file, relative to this one; what is set here has the last word.",
    }
    schema["properties"]["environment"]["propertyNames"] = {"pattern": _NAME}
    for table in (schema, *schema["$defs"].values()):
        _add_units(table)
    return {"$schema": _DIALECT} | schema | {"title": "Configuration of a forebay run"}


def _add_units(table: dict[str, Any]) -> None:
    for name, entry in table.get("properties", {}).items():
        unit = _UNITS.get(name.rpartition("_")[2])
        if unit:
            entry["x-unit"] = unit
