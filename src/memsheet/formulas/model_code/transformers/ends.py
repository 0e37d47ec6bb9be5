"""The two ends of a model: embeddings before the blocks; final norm, output projection and loss after them.

Axes besides those of ``blocks.py``: ``V0`` vocabulary, ``V`` a rank's share of it under tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.formulas.adapters import embedding_adapter
from memsheet.formulas.model_code.transformers.families import CLASSES
from memsheet.formulas.model_code.transformers.first_qwen import SHIFTED, SHIFTED_LOW, SHIFTED_SAME
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.model_code.transformers.pictures import (
    embed_pictures,
    of_pictures,
    picture_classes,
)
from memsheet.formulas.model_code.transformers.pooled import EMBEDDINGS, POOLED, pair_loss, pooled_states
from memsheet.formulas.model_code.transformers.prompts import is_prompt, with_prompt
from memsheet.formulas.numerics import RunConfig, head_adapter, vocabulary_table
from memsheet.formulas.tapes.graph import Grad, GradientSum, Leaf, Node, Tensor
from memsheet.formulas.tapes.kernel_scratch import embedding_backward_bytes
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BOOL, FP32, INT64, DType
from memsheet.plan.model import Embeddings, Head
from memsheet.plan.plan import Loss

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.encoders import (
        class_loss,
        classification_logits,
        masked_words,
    )
    from memsheet.formulas.model_code.transformers.first_qwen import shifted_loss
    from memsheet.formulas.model_code.transformers.losses import (
        chunked_cross_entropy,
        fused_linear_cross_entropy,
    )
    from memsheet.formulas.model_code.transformers.prefixes import with_prefix


KINDS = "token_type"


def input_embeddings(
    r: Recorder, embeddings: Embeddings, how: RunConfig, tied: GradientSum = GradientSum.NO
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Token and position look-ups, their sum, scaling, norms and dropout; and the look-ups, which the model's
    forward still names where they are no module of their own.

    Indices are inputs; tables get dense gradients. Positions may be looked up for each sequence, not once;
    kinds of tokens are.
    """
    if of_pictures(embeddings):
        return embed_pictures(r, embeddings, how), ()
    tables = [table for table in embeddings.weights if not is_prompt(table)]
    first, *others = sorted(tables, key=lambda table: (table is not tables[0], KINDS not in table.path))
    prompted = len(tables) < len(embeddings.weights) and how.adapter_kind.before_text
    x = _look_up(r, first.path, "V0", how, "b", tied=tied, tokens="ids" if prompted else "s")
    if how.asks_grad:
        x.node = x.node or _asked_gradient(x)
    x = with_prompt(r, x, how) if prompted else with_prefix(r, x, how) if how.adapter_kind.before_keys else x
    rows = [
        _look_up(r, table.path, table.shape[0], how, "b" if how.positions_each or KINDS in table.path else 1)
        for table in others
    ]
    named = (*(() if prompted else (x,)), *rows) if rows and not embeddings.own_module else ()
    for row in rows:
        x = r.add(x, row, "embeddings/sum")
    if embeddings.scaled:
        x = r.scale(x, "embeddings/scaled")
    for norm in embeddings.norms:
        x = apply_norm(r, x, norm, how)
    return r.dropout(x, "embeddings/dropout", active=how.dropout and embeddings.dropout), named


def _asked_gradient(x: Tensor) -> Node:
    """Where gradients of a tensor are added up that is asked for them, which names it."""
    return Node(0, "", (), [], [x.storage], lambda _: [])


def _look_up(
    r: Recorder,
    path: str,
    rows: Axis,
    how: RunConfig,
    sequences: Axis,
    *,
    tied: GradientSum = GradientSum.NO,
    tokens: Axis = "s",
) -> Tensor:
    """Rows of a table. ``tied``: how its gradient joins the head's, which waits."""
    dtype = how.parameters
    name = path.removesuffix(".weight")
    if how.tensor_parallel and rows == "V0":
        return _look_up_cut(r, name, how)
    table = vocabulary_table(r, path, (rows, "h"), how, joined=tied)

    def backward(_: Grad) -> list[Grad | None]:
        made = r.grad((rows, "h"), dtype)
        r.kernel_scratch(embedding_backward_bytes, ((sequences, tokens), rows, "h"), dtype)
        return [made]

    found = r.apply(r.tensor(f"{name}/output", (sequences, tokens, "h"), dtype), (table,), (), backward)
    if how.adapter_dtype is not None and name.rpartition(".")[2] in how.adapter_targets:
        found.node = _asked_gradient(found) if how.asks_grad else found.node
        return embedding_adapter(r, [found], name, (rows, sequences, tokens), how.adapter_dtype)
    return found


def _look_up_cut(r: Recorder, name: str, how: RunConfig) -> Tensor:
    """Rows that a tensor-parallel rank has, zeros for others, summed over ranks. The table's gradient is made
    for all of its rows (torch distributed/tensor/_ops/_embedding_ops.py, embedding_dense_backward) and then
    cut.
    """
    dtype = how.parameters
    table = Tensor(
        None,
        ("V0", "h"),
        dtype,
        Leaf(name, ("V", "h"), dtype, joined=GradientSum.CUT) if how.trains else None,
    )
    elsewhere, rows = (
        r.tensor(f"{name}/elsewhere", ("b", "s"), BOOL),
        r.tensor(f"{name}/rows", ("b", "s"), INT64),
    )
    own = r.tensor(f"{name}/rows_found", ("b", "s", "h"), dtype)
    del elsewhere, rows
    found = r.apply(own, (table,), (), lambda _: [r.grad(("V0", "h"), dtype)])
    del own
    return r.reduced(found, f"{name}/output")


def project_to_vocabulary(r: Recorder, x: Tensor, head: Head, how: RunConfig, table: str) -> Tensor:
    joined = GradientSum.WAITS if head.tied and r.compute is None else GradientSum.NO
    weight = vocabulary_table(r, table, ("V", "h"), how, joined=joined)
    x = r.cast(x, how.parameters, "lm_head/input") if head.wide else x
    logits = r.linear(r.spread(x, "lm_head") if how.tensor_parallel else x, weight, "V", "lm_head")
    if (
        how.adapter_dtype is not None
        and table.removesuffix(".weight").rpartition(".")[2] in how.adapter_targets
    ):
        base = [logits]
        del logits
        logits = head_adapter(r, x, base, how)
    if how.tensor_parallel:
        logits = r.gathered(logits, ("b", "s", "V0"), "lm_head")
    if head.wide:
        logits = r.cast(logits, FP32, "lm_head/fp32")
    if head.scaled:
        logits = r.scale(logits, "lm_head/scaled")
    if head.softcap:
        logits = r.scale(logits, "lm_head/softcap")
        logits = r.unary(logits, "lm_head/softcap", saves="output")
        logits = r.scale(logits, "lm_head/softcap")
    return logits


def cross_entropy(r: Recorder, logits: Tensor) -> Tensor:
    """Upcast to fp32, log-softmax (saves its output), negative log-likelihood (saves it again, the same
    storage).
    """
    wide = r.view(r.cast(logits, FP32, "loss/fp32"), ("b", "s", "V0"))
    shape = wide.shape
    logged = r.unary(wide, "loss/log_softmax", saves="output")
    return r.apply(r.tensor("loss/value", (1,), FP32), (logged,), (logged,), lambda _: [r.grad(shape, FP32)])


WITHOUT_LOGITS: dict[Loss, Callable[[Recorder, Tensor, RunConfig, str], Tensor]] = {
    Loss.FUSED: fused_linear_cross_entropy, Loss.CHUNKED: chunked_cross_entropy,
}  # fmt: skip


def scaled_words(r: Recorder, x: Tensor, head: Head, how: RunConfig, table: str) -> Tensor:
    """Dropout of the last states, which are scaled where the head is tied, and the output matrix
    (modeling_t5.py).
    """
    x = r.dropout(x, "lm_head/dropout", active=how.dropout)
    x = r.scale(x, "lm_head/scaled") if head.scaled else x
    return project_to_vocabulary(r, x, replace(head, scaled=False), how, table)


HEADS: dict[str, Callable[[Recorder, Tensor, Head, RunConfig, str], Tensor]] = {
    "causal_lm": project_to_vocabulary, **dict.fromkeys((SHIFTED, SHIFTED_LOW, SHIFTED_SAME), project_to_vocabulary), "masked_lm": masked_words, "classification": classification_logits, "sequence_to_sequence": scaled_words,
    CLASSES: picture_classes, POOLED: lambda r, x, *_: pooled_states(r, x),
}  # fmt: skip


def logits_or_states(r: Recorder, x: Tensor, head: Head, how: RunConfig, loss: Loss, table: str) -> Tensor:
    """Logits; a fused or chunked loss takes the hidden states themselves. ``table``: the parameter that makes
    logits of them.
    """
    return x if loss in WITHOUT_LOGITS else HEADS[head.kind](r, x, head, how, table)


def loss_input(how: RunConfig, loss: Loss) -> tuple[Shape, DType, str]:
    """Shape, dtype and name of what the loss takes."""
    if loss in WITHOUT_LOGITS:
        return ("b", "s", "h"), how.stream, "loss/input"
    if how.head == POOLED:
        return EMBEDDINGS, FP32 if how.autocast else how.parameters, "pooling/mean"
    if how.head in ("classification", CLASSES):
        return ("b", "n"), how.autocast or how.parameters, "classifier/output"
    return ("b", "s", "V0"), how.autocast or how.parameters, "lm_head/output"


def head_output_loss(r: Recorder, x: Tensor, how: RunConfig, loss: Loss, table: str) -> Tensor:
    """From logits (or hidden states) to the loss."""
    if loss in WITHOUT_LOGITS:
        return WITHOUT_LOGITS[loss](r, x, how, table)
    if how.head in (SHIFTED, SHIFTED_LOW, SHIFTED_SAME):
        return shifted_loss(r, x, how.head)
    if how.head == POOLED:
        return pair_loss(r, x)
    return cross_entropy(r, x) if how.head == "causal_lm" else class_loss(r, x)
