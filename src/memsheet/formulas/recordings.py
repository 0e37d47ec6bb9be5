"""Tapes of a model's parts, recorded once for each way they run: blocks, embeddings, head and loss as their
model code writes them.
"""

from __future__ import annotations

from functools import lru_cache

from memsheet.formulas.model_code import ModelCode, model_code
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import STORED, RunConfig
from memsheet.formulas.tapes.graph import GradientSum, Pass, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Tape, as_reentrant
from memsheet.plan.model import Block, Embeddings, Head, Norm
from memsheet.plan.plan import Loss


def _new_recorder(
    how: RunConfig, pass_: Pass = Pass.PLAIN, *, reentrant: bool = False
) -> tuple[Recorder, ModelCode]:
    made = Recorder(
        compute=how.autocast,
        processor=how.processor,
        offloads=how.offloads,
        pass_=pass_,
        chosen=how.chosen,
        reentrant=reentrant,
    )
    return made, model_code(how.layers)


@lru_cache(maxsize=512)
def record_block(
    block: Block, how: RunConfig, *, saving: bool = True, recomputed: bool = False, reentrant: bool = False
) -> Tape:
    """The tape of one block. ``saving``: False for a forward that will be recomputed; ``recomputed`` for the
    one that does so, ``reentrant`` where torch's reentrant checkpoint does.
    """
    if block.recorded is not None:
        from memsheet.formulas.model_code.recorded import recorded_block

        made = recorded_block(block.recorded, how, saving=saving, recomputed=recomputed)
        return as_reentrant(made) if reentrant else made
    pass_ = Pass.RECOMPUTED if recomputed else Pass.PLAIN if saving else Pass.LIGHT
    r, code = _new_recorder(how, pass_, reentrant=reentrant)

    def run() -> tuple[Tensor, Tensor]:
        x = r.arriving(code.stream, how.stream, needs_grad=how.input_grad)
        return code.forward(r, x, block, how), x

    if recomputed and (how.chosen or (how.quantized and STORED[how.stored].holds)):
        r.runs_again(run)
    made = r.finish(*run())
    return as_reentrant(made, len(r.handed_on)) if reentrant else made


@lru_cache(maxsize=64)
def record_embeddings(embeddings: Embeddings, how: RunConfig, *, tied: GradientSum = GradientSum.NO) -> Tape:
    r, code = _new_recorder(how)
    x, named = code.embed(r, embeddings, how, tied)
    return r.finish(
        x, gradient=f"{embeddings.weights[0].path.removesuffix('.weight')}/gradient", lingering=named
    )


@lru_cache(maxsize=64)
def record_head(
    norms: tuple[Norm, ...], head: Head, how: RunConfig, loss: Loss, before: str, table: str = "lm_head"
) -> Tape:
    """Final norms and what the loss takes.

    ``before``: the name of what the layers hand over; ``table``: that of the parameter that makes logits of
    them.
    """
    r, code = _new_recorder(how)
    arrived = r.arriving(code.stream, how.stream, before, needs_grad=how.input_grad)
    x = r.cast(arrived, how.parameters, f"{before}/handed") if how.handed_low else arrived
    for norm in norms:
        x = (code.normalise or apply_norm)(r, x, norm, how)
    del arrived  # the model's forward names it until its norm returns
    out = code.head(r, x, head, how, loss, table)
    return r.finish(out, gradient="loss/backward", lingering=() if out.storage == x.storage else (x,))


@lru_cache(maxsize=64)
def record_loss(how: RunConfig, loss: Loss, table: str = "lm_head") -> Tape:
    """From logits (or hidden states) to the loss. What arrives stays until the model's forward returns."""
    r, code = _new_recorder(how)
    shape, dtype, path = code.loss_input(how, loss)
    x = r.arriving(shape, dtype, path)
    return r.finish(code.loss(r, x, how, loss, table), x, gradient=None)
