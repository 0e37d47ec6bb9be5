"""A plan's mesh as torch's: one named axis for each degree, the slowest first."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memsheet.errors import input_error
from memsheet.plan.plan import Plan

SHARDS = "dp_shard_cp"
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""As torchtitan (distributed/parallel_dims.py) and transformers (distributed/utils.py,
initialize_distributed_mesh) number ranks.
"""


def build_mesh(plan: Plan, device: str) -> DeviceMesh:
    """The mesh of all ranks, with the axes that are larger than one and always ``dp_shard``; with experts to
    share ``tp`` too.

    Raises InputError for axes that no code here applies. The process group must be there.
    """
    if plan.mesh.etp not in (1, plan.mesh.tp) or (plan.mesh.etp > 1 and plan.mesh.ep > 1):
        raise input_error(
            "mesh.etp",
            plan.mesh.etp,
            "is not run: transformers has whole experts on a rank, or cuts them over all of tp",
        )
    if plan.mesh.ep > 1 and plan.mesh.cp * plan.mesh.pp > 1:
        raise input_error("mesh.ep", plan.mesh.ep, "is not run with context parallelism or pipelines")
    sizes = {axis: int(getattr(plan.mesh, axis)) for axis in AXES}
    kept = tuple(
        axis for axis in AXES if sizes[axis] > 1 or axis == "dp_shard" or (axis == "tp" and plan.mesh.ep > 1)
    )
    mesh = init_device_mesh(device, tuple(sizes[axis] for axis in kept), mesh_dim_names=kept)
    if sizes["cp"] > 1:
        mesh["dp_shard", "cp"]._flatten(SHARDS)
    return mesh


def parameter_shard_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks that share out parameters: replicas of shards, and context-parallel ranks among the shards
    (accelerate 1.15, parallelism_config.py:135-164).
    """
    shards = SHARDS if "cp" in (mesh.mesh_dim_names or ()) else "dp_shard"
    replicas = ("dp_replicate",) if "dp_replicate" in (mesh.mesh_dim_names or ()) else ()
    return mesh[(*replicas, shards)]


def submesh_along(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    """The part of a mesh along those of ``names`` that it has."""
    return mesh[tuple(name for name in names if name in (mesh.mesh_dim_names or ()))]


def data_parallel_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks that see different data, in one dimension: for replicas, whether or not they share out an
    optimizer's states.
    """
    if "dp_replicate" not in (mesh.mesh_dim_names or ()):
        return mesh["dp_shard"]
    return mesh["dp_replicate", "dp_shard"]._flatten("dp")


def axis_coordinate(mesh: DeviceMesh, axis: str) -> int:
    """The rank's place along an axis; 0 along one that the mesh does not have."""
    return mesh.get_local_rank(axis) if axis in (mesh.mesh_dim_names or ()) else 0
