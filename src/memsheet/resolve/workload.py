"""Lengths and sequences: what a step or a server is given."""

from __future__ import annotations

from memsheet.late import late_functions
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh
from memsheet.plan.sequence_length import asked_length, derived_max_length
from memsheet.plan.workload import Training
from memsheet.resolve.pipeline import global_batch_of
from memsheet.resolve.serving import check_positions

with late_functions(__name__):
    from memsheet.resolve.length import check_length


UNKNOWN_LENGTH = 4096
"""Tokens of a sequence where neither the question nor the model says how many: what Llama 2 was trained on
(arXiv:2307.09288).
"""


def training_of(
    gaps: RequestResolver, engine: Engine, mesh: Mesh, model: ModelSpec | None, task: str
) -> Training | None:
    """The steps that a plan trains in; None where it serves."""
    if task != "train":
        check_positions(gaps, "seq_len", gaps.request.get("seq_len"), model)
        return None
    return Training(
        microbatch=gaps.get("microbatch", 1),
        global_batch=global_batch_of(gaps, engine, mesh),
        seq_len=_seq_len(gaps, model),
        image_tokens=gaps.get("image_tokens", 0, silent=True),
        varied=engine.varies and gaps.request.get("seq_len_kind") == "maximum",
    )


def _seq_len(gaps: RequestResolver, model: ModelSpec | None) -> int:
    seq_len = gaps.request.get("seq_len")
    if model is not None and not seq_len:
        gaps.wrong(
            "seq_len", seq_len, "is missing; saved activations depend on it", "for example --seq-len 4096"
        )
    check_positions(gaps, "seq_len", seq_len, model)
    return seq_len or 0


def max_model_len_of(
    gaps: RequestResolver, model: ModelSpec | None, engine: Engine, *, served: bool
) -> int | None:
    """Tokens that a sequence may have; None where weights are loaded and no more."""
    given = asked_length(gaps.request)
    prompt, output = gaps.request.get("serving.prompt_tokens"), gaps.request.get("serving.output_tokens")
    told = gaps.request.get("serving.max_model_len") or gaps.request.get("seq_len")
    if told and given and output is not None and (prompt or 0) + output < given and not served:
        gaps.assumed.append(
            f"serving.max_model_len = {given} is how long the cache is; serving.output_tokens = {output} "
            "ends before"
        )
    if given is None and gaps.request.get("phase") != "load" and model is not None:
        own = derived_max_length(model) if engine.limits.derives_length else model.max_positions
        given = own or UNKNOWN_LENGTH
        gaps.assumed.append(
            f"serving.max_model_len = {given} "
            f"({'as long as the model was made for' if own else 'the model says no length'})"
        )
    elif given is None and gaps.request.get("phase") != "load":
        gaps.wrong(
            "serving.max_model_len",
            None,
            "is missing; the cache depends on it",
            "for example --max-model-len 8192",
        )
    if given != gaps.request.get("seq_len"):
        check_positions(gaps, "serving.max_model_len", given, model)
    check_length(gaps, engine.name, model, given)
    return given


def sequences_of(gaps: RequestResolver, task: str, usual: int | None) -> int:
    """Sequences served at once: by their own name, or as a batch of generation. ``usual``: what the server
    takes where nobody says.
    """
    if task == "train":
        return 1
    given = gaps.request.get("serving.batch") or gaps.request.get("microbatch")
    sequences: int = gaps.get("serving.max_sequences", given or usual or 1, silent=given is not None)
    return sequences
