"""Replicas by DistributedDataParallel, with accelerate's defaults (1.15, utils/dataclasses.py:183-191):
gradients beside the buckets.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from memsheet.run.mesh import data_parallel_mesh

GRADIENT_AS_BUCKET_VIEW = False


def apply_ddp(model: nn.Module, mesh: DeviceMesh, *, synchronize: bool = True) -> DistributedDataParallel:
    """The model as a replica on every data-parallel rank. ``synchronize``: the first one's parameters are
    sent now, to ranks that are there.

    One by one: the wrapper would flatten them into another copy of the model first (torch
    nn/parallel/distributed.py, ``broadcast_bucket_size``).
    """
    group = data_parallel_mesh(mesh).get_group()
    for tensor in (*model.parameters(), *model.buffers()) if synchronize else ():
        dist.broadcast(tensor.detach(), group_src=0, group=group)
    return DistributedDataParallel(
        model, process_group=group, init_sync=False, gradient_as_bucket_view=GRADIENT_AS_BUCKET_VIEW
    )
