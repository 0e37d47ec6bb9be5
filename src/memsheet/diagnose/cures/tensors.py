"""What the tensors that a request may be have in common, and how attention is told to write no scores."""

from __future__ import annotations

import re

from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import PICTURES, SERVING
from memsheet.diagnose.message import MAYBE, Cure, Term
from memsheet.diagnose.signs import Signs

NOT_MADE = "the tensor asked for is not made then"
SDPA = 'attn_implementation="sdpa"'


SCORELESS_PROGRAMS = {
    "stable-diffusion-webui": "--opt-sdp-attention (or --xformers)",
    "ComfyUI": "--use-pytorch-cross-attention",
    "Megatron-LM": "--use-flash-attn",
}


SCORELESS_CODE = (
    (re.compile(r"\btimm\b|pytorch-image-models"), "TIMM_FUSED_ATTN=1 (and no --no-fused-attn)"),
    (re.compile(r"\btransformers\b|from_pretrained|attn_implementation"), SDPA),
)


OWN_CODE = "torch.nn.functional.scaled_dot_product_attention"


def place_of_scoreless(signs: Signs) -> str:
    """How attention is told to write no scores, by the program that ran, else by whose code it is."""
    if signs.task == SERVING:
        return "the server's option for its attention's backend"
    if told := SCORELESS_PROGRAMS.get(signs.program):
        return told
    if signs.task == PICTURES:
        return "AttnProcessor2_0"
    known = (place for sign, place in SCORELESS_CODE if sign.search(signs.text))
    return next(known, "") or (SDPA if signs.trainer else OWN_CODE)


def without_scores(figures: Figures, where: str) -> Cure:
    return Cure(
        change="attention that writes no scores (sdpa, flash)", helps=MAYBE, saves_bytes=figures.asked.middle, where=where,
        why=NOT_MADE,
    )  # fmt: skip


def shared_term(term: Term | None) -> Term | None:
    """What all tensors that a request may be have in common, for changes that help each of them; None where
    some are as large for any batch and some are not.
    """
    if term is None or not term.others:
        return term
    every = (term, *term.others)
    if len({(each.component, each.path) for each in every}) == 1:
        return term
    if all(map(grows_with_batch, every)):
        words = "what is made of tokens"
        return Term(component="saved_activations", path="model", shape="", exact=False, words=words)
    if not any(map(grows_with_batch, every)) and len({each.component for each in every}) == 1:
        return term
    return None


def grows_with_batch(term: Term | None) -> bool:
    return (
        term is not None and term.path != "sampler" and term.component in ("temporaries", "saved_activations")
    )


def first_axis(term: Term) -> int:
    first = term.shape.strip("[").split(",")[0]
    return int(first) if first.isdigit() else 0
