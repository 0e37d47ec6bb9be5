"""PyTorch's caching allocator, simulated: a timeline in, what it reserves and where it runs out of memory
out. No torch here.

Every rule cites the source it was read from: pytorch/pytorch, v2.13.0. Not modelled: private pools (CUDA
graphs, torch.cuda.use_mem_pool), memory that others take from the device, and the driver's own granularity
beyond whole segments and pages.
"""

from memsheet.allocator.capacity import Capacity, smallest_capacity
from memsheet.allocator.conf import settings_from
from memsheet.allocator.replay import Death, Replay, replay_timeline
from memsheet.allocator.settings import Settings
from memsheet.allocator.slack import slack_item, slack_within, with_slack

__all__ = [
    "Capacity",
    "Death",
    "Replay",
    "Settings",
    "replay_timeline",
    "settings_from",
    "slack_item",
    "slack_within",
    "smallest_capacity",
    "with_slack",
]
