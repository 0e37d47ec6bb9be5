"""Replicas by DistributedDataParallel, with accelerate's defaults (1.15, utils/dataclasses.py:183-191): gradients beside the buckets."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from memsheet.run.mesh import replicas

GRADIENT_AS_BUCKET_VIEW = False


def apply_ddp(model: nn.Module, mesh: DeviceMesh, *, synchronize: bool = True) -> DistributedDataParallel:
    """The model as a replica on every data-parallel rank. ``synchronize``: parameters are broadcast now, which needs the other ranks."""
    group = replicas(mesh).get_group()
    return DistributedDataParallel(model, process_group=group, init_sync=synchronize, gradient_as_bucket_view=GRADIENT_AS_BUCKET_VIEW)
