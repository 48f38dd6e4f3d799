from __future__ import annotations

import ast

from tests.house import sources


def _is_public(qualname: str) -> bool:
    return not any(part.startswith("_") for part in qualname.split("."))


def _is_overload(definition: sources.Definition) -> bool:
    return any(ast.unparse(item).endswith("overload") for item in definition.node.decorator_list)


def test_every_module_has_a_docstring() -> None:
    assert [module.name for module in sources.modules() if not module.summary] == []


def test_every_public_name_has_a_docstring() -> None:
    bare = [
        definition.label
        for module in sources.modules()
        if module.is_public
        for definition in sources.definitions(module)
        if _is_public(definition.qualname)
        and not _is_overload(definition)
        and not ast.get_docstring(definition.node)
    ]
    assert bare == []
