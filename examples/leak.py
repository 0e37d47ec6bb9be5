"""A step that keeps every output: what outlives it grows. ``memsheet trace examples/leak.py:build``."""

import torch
from torch import nn

KEPT = []


def build():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for _ in range(8):
            output = model(torch.randn(2048, 1024))
            output.square().mean().backward()
            KEPT.append(output.detach())
            optimizer.step()
            optimizer.zero_grad()

    return model, optimizer, step
