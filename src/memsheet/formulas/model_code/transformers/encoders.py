"""Heads of encoders as the transformers library runs them: masked words, classes of a sequence or of every
token.

Axes besides those of ``ends.py``: ``n`` classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.formulas.tapes.graph import GradientSum, Tensor
from memsheet.late import late_functions
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Head, Weight

if TYPE_CHECKING:
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.recorder import Recorder
with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.norms import fused_layer_norm


def masked_words(r: Recorder, x: Tensor, head: Head, how: RunConfig, table: str) -> Tensor:
    """A dense layer, gelu, a norm, the output matrix with its bias (transformers 5.23,
    modeling_bert.py:466-496, modeling_roberta.py:872).
    """
    bias, weight, low, *norm = (w.path for w in head.weights[:5])
    x = _classifier_linear(r, x, weight, low, "h", "h", how)
    x = r.unary(x, weight.removesuffix(".weight") + "/activation", saves="input")
    if r.widens:
        x = r.cast(x, FP32, norm[0].removesuffix(".weight") + "/input")
    x = fused_layer_norm(
        r, x, tuple(r.parameter(path, ("h",), how.parameters, trains=how.trains) for path in norm), norm[0]
    )
    joined = GradientSum.WAITS if head.tied and r.compute is None else GradientSum.NO
    decoder = r.parameter(table, ("V", "h"), how.parameters, trains=how.trains, joined=joined)
    return r.linear(
        x, decoder, "V", "lm_head", bias=r.parameter(bias, ("V",), how.parameters, trains=how.trains)
    )


def classification_logits(r: Recorder, x: Tensor, head: Head, how: RunConfig, _: str) -> Tensor:
    """Logits of the first token's state through a dense layer and tanh (modeling_bert.py:451-463,
    modeling_roberta.py:1142-1161), or of every token's (modeling_bert.py:1234).
    """
    *dense, out, low = (w.path for w in head.weights)
    drops = how.dropout and "classifier" in out
    if dense:
        x = r.slice(x, ("b", "h"))
        x = r.dropout(x, "classifier/first_dropout", active=drops and "pooler" not in dense[0])
        x = r.unary(
            _classifier_linear(r, x, dense[0], dense[1], "h", "h", how),
            dense[0].removesuffix(".weight") + "/tanh",
            saves="output",
        )
    x = r.dropout(x, "classifier/dropout", active=drops)
    return _classifier_linear(r, x, out, low, "n", "h", how)


def class_loss(r: Recorder, logits: Tensor) -> Tensor:
    """Cross entropy without an upcast: log-softmax in the logits' own dtype, which cross_entropy_loss (aten
    native/LossNLL.cpp) asks for by name; what it made is raised to fp32 by autocast for the negative
    log-likelihood. On a CPU autocast raises the logits themselves.
    """
    if r.compute is not None and r.processor:
        logits = r.cast(logits, FP32, "loss/fp32")
    logged = r.unary(logits, "loss/log_softmax", saves="output")
    logged = r.cast(logged, FP32, "loss/fp32") if r.compute is not None else logged
    shape, dtype = logged.shape, logged.dtype
    return r.apply(
        r.tensor("loss/value", (1,), dtype), (logged,), (logged,), lambda _: [r.grad(shape, dtype)]
    )


def _classifier_linear(
    r: Recorder, x: Tensor, weight: str, bias: str, out: str, width: str, how: RunConfig
) -> Tensor:
    name = weight.removesuffix(".weight")
    low = r.parameter(bias, (out,), how.parameters, trains=how.trains)
    return r.linear(
        x, r.parameter(name, (out, width), how.parameters, trains=how.trains), out, name, bias=low
    )


def pooler_weights(extras: tuple[Weight, ...], head: Head) -> tuple[Weight, ...]:
    """The pooler's weights, where the head takes what it makes."""
    return extras if head.kind == "classification" and all("pooler" in w.path for w in extras) else ()


def unmodelled_head(head: Head, activations: set[str]) -> str | None:
    """Why a head's loss cannot be recorded here, or None when it can."""
    paths = [w.path for w in head.weights]
    if head.kind == "masked_lm" and any("seq_relationship" in path for path in paths):
        return "its loss is two: masked words and the next sentence"
    if head.kind == "masked_lm" and not activations <= {"gelu", "silu"}:
        return "its head has another activation than gelu"
    if head.kind == "masked_lm" and not head.tied:
        return "its output matrix is not the embedding table"
    if head.kind == "classification" and any("qa_outputs" in path for path in paths):
        return "its loss is two: where an answer starts and where it ends"
    return None
