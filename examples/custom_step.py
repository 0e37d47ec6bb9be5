"""A training step of one's own, small enough to work out by hand: ``memsheet trace examples/custom_step.py:build``.

A layer of 1024 × 4096 weights, a ReLU and a layer of 4096 × 1024, on 512 rows of fp32. Parameters take 2 · 4,194,304 · 4 bytes =
32 MiB, and as much again their gradients; AdamW's two moments take twice that. Forward saves its input (2 MiB), the ReLU's output
(8 MiB, which the second layer saves too) and, for the loss, the output (2 MiB) with its target (2 MiB, an input).
"""

import torch
from torch import nn

ROWS, WIDTH, INNER = 512, 1024, 4096


def build():
    """The module, its optimizer and one step."""
    model = nn.Sequential(nn.Linear(WIDTH, INNER, bias=False), nn.ReLU(), nn.Linear(INNER, WIDTH, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rows, target = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)

    def step():
        loss = nn.functional.mse_loss(model(rows), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step
