"""A bare model of text, as sentence-transformers trains it: the mean of a sequence's states, and a loss over
the micro-batch's embeddings.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.pictures import of_pictures
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT64
from memsheet.plan.model import Graded, Head, ModelSpec

POOLED = "pooled"
"""The kind of head of a model that ends with its states, where it trains."""
STATES: Shape = ("b", "s", "h")
EMBEDDINGS: Shape = ("b", "h")


ON_EMBEDDINGS = (
    "a model that ends with its states is trained on embeddings: their mean over a sequence, and a loss over "
    "the micro-batch's sequences (sentence-transformers), of which a pair is two"
)


def pools_states(spec: ModelSpec) -> bool:
    """Whether a model of text ends with its states. A head of few labels or of a value that is left out is as
    wide as the vocabulary in whose place it stands.
    """
    bare = spec.head.kind == "none" and spec.head.width == spec.hidden
    return bare and not of_pictures(spec.embeddings)


def pooling_notes(spec: ModelSpec) -> tuple[str, ...]:
    """What such a model is taken to be trained on."""
    return (ON_EMBEDDINGS,) if pools_states(spec) else ()


def with_pooled_head(spec: ModelSpec) -> ModelSpec:
    """The model with a head that pools. No gradient comes to what the model pools itself."""
    idle = tuple(
        replace(weight, graded=Graded.FROZEN) if "pooler" in weight.path else weight for weight in spec.extras
    )
    return replace(spec, extras=idle, head=Head(kind=POOLED, width=spec.hidden))


def pooled_states(r: Recorder, x: Tensor) -> Tensor:
    """The mean over tokens under their mask, which is as large as the states and saved for the product
    (huggingface/sentence-transformers 0aa54b9 sentence_transformers/models/Pooling.py, forward).
    """
    mask = r.tensor("pooling/mask", ("b", "s"), INT64)
    weights = r.tensor("pooling/weights", STATES, x.dtype)
    product = r.mul(x, weights, "pooling/product")
    dtype = x.dtype

    def spread(g: Grad) -> list[Grad | None]:
        return [Grad(g.storage, STATES, dtype)]

    total = r.apply(r.tensor("pooling/sum", EMBEDDINGS, dtype), (product,), (), spread)
    del product
    counts = r.tensor("pooling/counts", EMBEDDINGS, dtype)
    del mask, weights
    return r.apply(
        r.tensor("pooling/mean", EMBEDDINGS, dtype),
        (total,),
        (counts,),
        lambda _: [r.grad(EMBEDDINGS, dtype)],
    )


def pair_loss(r: Recorder, x: Tensor) -> Tensor:
    """Cross entropy over cosines of all pairs (huggingface/sentence-transformers 023acff
    sentence_transformers/losses/MultipleNegativesRankingLoss.py): matrices of sequences by sequences.
    """
    unit = r.unary(x, "loss/normalized", saves="output")
    dtype = x.dtype
    scores = r.apply(
        r.tensor("loss/scores", ("b", "b"), dtype), (unit,), (unit,), lambda _: [r.grad(EMBEDDINGS, dtype)]
    )
    logged = r.unary(r.cast(scores, FP32, "loss/fp32"), "loss/log_softmax", saves="output")
    return r.apply(
        r.tensor("loss/value", (1,), FP32), (logged,), (logged,), lambda _: [r.grad(("b", "b"), FP32)]
    )
