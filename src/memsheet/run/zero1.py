"""ZeRO stage 1 as torch has it: every rank steps its share of the parameters, whole tensors of them, and
broadcasts the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer

from memsheet.plan.plan import Plan
from memsheet.run.mesh import data_parallel_mesh
from memsheet.run.optimizer import build_optimizer


def build_zero1(
    parameters: Iterable[torch.nn.Parameter], plan: Plan, mesh: DeviceMesh
) -> ZeroRedundancyOptimizer:
    """The plan's optimizer over this rank's share; its own states are in ``.optim``. Errors as
    ``build_optimizer``.
    """
    plain = build_optimizer(parameters, plan)
    kind = type(plain)
    settings = {
        name: value
        for name, value in plain.defaults.items()
        if name in inspect.signature(kind.__init__).parameters
    }
    trained = [parameter for group in plain.param_groups for parameter in group["params"]]
    return ZeroRedundancyOptimizer(
        trained, optimizer_class=kind, process_group=data_parallel_mesh(mesh).get_group(), **settings
    )
