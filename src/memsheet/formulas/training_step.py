"""A training step as what its moments are made of."""

from __future__ import annotations

from memsheet.formulas.groups import StageLayers
from memsheet.formulas.recompute_segments import RecomputeSegments
from memsheet.formulas.sharding.overhead import ShardingOverhead
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.formulas.tapes.evaluate import NOTHING, Beside
from memsheet.frozen import dataclass
from memsheet.plan.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Everything the moments of a step are made of."""

    walk: StageLayers
    around: ShardingOverhead
    states: BytesByPath  # parameters, masters, moments, buffers, inputs
    resident_gradients: BytesByPath  # with gradient accumulation, at every instant
    shared: BytesByPath  # rotary tables: saved by the first layer that uses them
    masks: BytesByPath  # through the model's forward
    plan: Plan
    keeps_masks: bool = False
    masks_inside: bool = False  # the embeddings' own forward holds them
    stretches: RecomputeSegments | None = None  # layers that are recomputed together
    others: BytesByPath = EMPTY  # what other micro-batches keep for their backward, in a pipeline
    until_loss: BytesByPath = EMPTY  # besides masks, and on until the loss is there
    named: BytesByPath = EMPTY  # what the training loop still names from the loss to the end of the step
    returned: BytesByPath = EMPTY  # what the model's forward returned to this card, until the loss is there
    beside: Beside = NOTHING  # what forward names of a tower that pictures pass through

    @property
    def accumulates(self) -> bool:
        return self.resident_gradients is not EMPTY

    @property
    def lets_go(self) -> bool:
        """Whether gradients are gone when they are made: added to resident ones, or stepped with."""
        return self.accumulates or self.plan.optimizer_in_backward

    @property
    def kept_tables(self) -> BytesByPath:
        """Rotary tables between forward and backward: saved by layers, if not on the host, or arguments of
        their checkpoints.
        """
        return EMPTY if self.plan.offload.activations and not self.keeps_masks else self.shared

    @property
    def kept_masks(self) -> BytesByPath:
        """A checkpoint holds on to its arguments, the mask among them, until its layer has run backward."""
        return self.masks if self.keeps_masks else EMPTY
