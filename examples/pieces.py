"""Lengths that grow, and a piece of each output that is kept a while: it lies in the middle of memory.
``memsheet trace examples/pieces.py:build``.
"""

from collections import deque

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    optimizer = torch.optim.AdamW(model.parameters())
    pieces = deque(maxlen=6)

    def step():
        for tokens in range(2048, 12288, 1024):
            output = model(torch.randn(tokens, 1024))
            output.square().mean().backward()
            pieces.append(output[:, :256].detach().clone())
            optimizer.step()
            optimizer.zero_grad()

    return model, optimizer, step
