"""The table of what each mesh axis splits; no JAX, so that arithmetic about meshes can use it too.

`sharding` says in words what it means.
"""

from __future__ import annotations

from typing import Final

MESH_AXIS_NAMES: Final = ("data", "fsdp", "context", "tensor", "expert")
# Mesh axes that split the rows of a batch.
ROW_AXES: Final = ("data", "fsdp", "expert")
# Logical axis of a parameter -> mesh axis that splits it; absent means not split.
PARAMETER_AXES: Final = {
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "expert",
}
