"""A plan's mesh as torch's: one named axis for each degree, the slowest first."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memsheet.errors import refuse
from memsheet.spec.plan import Plan

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""As torchtitan (distributed/parallel_dims.py) and transformers (distributed/utils.py, initialize_distributed_mesh) number ranks."""


def build_mesh(plan: Plan, device: str) -> DeviceMesh:
    """The mesh of all ranks, with the axes that are larger than one and always ``dp_shard``.

    Raises InputError for axes that no code here applies. The process group must be there.
    """
    if plan.mesh.cp > 1:
        raise refuse("mesh.cp", plan.mesh.cp, "is not run yet: ring attention has no stand-in without a GPU")
    if plan.mesh.ep > 1 or plan.mesh.etp > 1:
        raise refuse("mesh.ep", plan.mesh.ep, "is not run yet: how many tokens an expert gets is data")
    sizes = {axis: int(getattr(plan.mesh, axis)) for axis in AXES}
    kept = tuple(axis for axis in AXES if sizes[axis] > 1 or axis == "dp_shard")
    return init_device_mesh(device, tuple(sizes[axis] for axis in kept), mesh_dim_names=kept)


def axes(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    """The part of a mesh along those of ``names`` that it has."""
    return mesh[tuple(name for name in names if name in (mesh.mesh_dim_names or ()))]


def coordinate(mesh: DeviceMesh, axis: str) -> int:
    """The rank's place along an axis; 0 along one that the mesh does not have."""
    return mesh.get_local_rank(axis) if axis in (mesh.mesh_dim_names or ()) else 0
