"""The two ends of a vision transformer as the transformers library runs it (5.23, modeling_vit.py), written
over shape-only tensors.

Axes besides those of ``ends.py``: ``n`` classes; ``p`` values of a patch; ``s`` counts the patches and a
class token.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.plan.model import Embeddings, Head, ModelSpec, Weight
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula


def of_pictures(embeddings: Embeddings) -> bool:
    return any("patch_embeddings" in weight.path for weight in embeddings.weights)


def embed_pictures(r: Recorder, embeddings: Embeddings, how: RunConfig) -> Tensor:
    """Patches by a convolution, the class token in front of them, positions, dropout
    (modeling_vit.py:45-160).
    """
    name = next(w.path for w in embeddings.weights if "patch_embeddings" in w.path).removesuffix(".weight")
    x = _patch_convolution(r, name, how)
    first, places = (
        _embedding_parameter(r, embeddings, part, shape, how)
        for part, shape in (("cls_token", (1, 1, "h")), ("position", (1, "s", "h")))
    )
    x = r.cat((x, first), ("b", "s", "h"), "embeddings/cat")
    x = r.add(x, places, "embeddings/sum")
    return r.dropout(x, "embeddings/dropout", active=how.dropout and embeddings.dropout)


def _patch_convolution(r: Recorder, name: str, how: RunConfig) -> Tensor:
    """A convolution whose stride is its kernel: saves the picture, which is the batch's. Its gradient is laid
    out anew first.
    """
    weight = r.autocast(r.parameter(name, ("h", "p"), how.parameters, trains=how.trains), name)
    bias = r.autocast(r.parameter(f"{name}.bias", ("h",), how.parameters, trains=how.trains), f"{name}.bias")
    picture = Tensor(None, ("b", "s-1", "p"), how.parameters)
    given = r.autocast(picture, f"{name}/input") if how.autocast else picture
    dtype, out = weight.dtype, ("b", "s-1", "h")

    def backward(_: object) -> list[object]:
        laid_out = r.grad(out, dtype)
        grads = [r.grad(("h", "p"), dtype), r.grad(("h",), dtype)]
        del laid_out
        return [None, *grads]

    return r.apply(r.tensor(f"{name}/output", out, dtype), (given, weight, bias), (given, weight), backward)  # type: ignore[arg-type]


def _embedding_parameter(
    r: Recorder, embeddings: Embeddings, part: str, shape: tuple[int | str, ...], how: RunConfig
) -> Tensor:
    weight: Weight = next(w for w in embeddings.weights if part in w.path)
    return r.parameter(weight.path, shape, how.parameters, trains=how.trains)


def picture_classes(r: Recorder, x: Tensor, head: Head, how: RunConfig, _: str) -> Tensor:
    """Logits of the class token's state (:545-547)."""
    weight, bias = (w.path for w in head.weights)
    name = weight.removesuffix(".weight")
    low = r.parameter(bias, ("n",), how.parameters, trains=how.trains)
    return r.linear(
        r.slice(x, ("b", "h")),
        r.parameter(name, ("n", "h"), how.parameters, trains=how.trains),
        "n",
        name,
        bias=low,
    )


@formula(cites=TRANSFORMERS, at="modeling_vit.py: a patch is a convolution's kernel")
def patch_values(embeddings: Embeddings) -> Count:
    """Values of one patch: channels times height times width."""
    weight = next(
        w for w in embeddings.weights if "patch_embeddings" in w.path and w.path.endswith(".weight")
    )
    return weight.elements // weight.shape[0]


@formula(
    cites=TRANSFORMERS, at="modeling_vit.py: pictures as the model is given them, in its parameters' dtype"
)
def picture_bytes(spec: ModelSpec, plan: Plan) -> Count:
    """Of one micro-batch."""
    return plan.precision.parameters.nbytes(
        plan.training.microbatch * (plan.training.seq_len - 1) * patch_values(spec.embeddings)
    )
