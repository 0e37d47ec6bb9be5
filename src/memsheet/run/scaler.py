"""fp16 autocast's gradient scaler: the loss is made larger so that small gradients are no zeros, and a step
that overflowed is left out.
"""

from __future__ import annotations

import torch

from memsheet.plan.plan import Plan
from memsheet.plan.real_step import scales_loss


def build_scaler(plan: Plan, device: str) -> torch.amp.GradScaler:
    """Torch's own scaler; one that does nothing for every precision but fp16 autocast."""
    scales = scales_loss(plan)
    return torch.amp.GradScaler(device, enabled=scales)
