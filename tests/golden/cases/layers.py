"""Sizes of a layer's axes, tables of positions, pictures, and what a process holds whatever it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from golden.symbols import TENSOR, Cases, call, first, how, pass_shape, plan, spec, symbol
from memsheet.formulas.model_code.transformers.picture_towers import with_pictures
from memsheet.plan.model import Block, LatentAttention, LinearAttention, ModelSpec, StateSpace
from memsheet.plan.plan import Plan

LATENT, HYBRID, SEEING = "deepseek-v2-lite", "qwen3-next-80b-a3b", "qwen2-vl-2b"
LENGTH = symbol("seq_len")


def seeing() -> tuple[ModelSpec, Plan]:
    """A model with its tower as the first of its layers, and a plan with pictures."""
    made = plan("transformers", SEEING)
    made = replace(made, workload=replace(made.training, image_tokens=symbol("image_tokens")))
    return with_pictures(spec(SEEING), made), made


TOWERS = "model_code.transformers.picture_towers"
CASES: dict[str, Callable[[], Cases]] = {
    "model_code.transformers.code.block_axes": lambda: {"": call(first(Block), plan(), pass_shape())},
    "delta.delta_axes": lambda: {"": call(first(LinearAttention, HYBRID), LENGTH)},
    "latent.latent_table": lambda: {kind: call(first(LatentAttention, LATENT), kind, LENGTH, how(mesh=False)) for kind in ("deepseek_v2", "deepseek_v3")},
    "mixers.mixer_axes": lambda: {"latent": call(first(LatentAttention, LATENT), LENGTH), "mamba": call(first(StateSpace, "jamba-v0.1"), LENGTH)},
    "split_scan.split_axes": lambda: {"mamba2": call(first(StateSpace, "mamba-codestral-7b"), LENGTH)},
    "state_space.state_space_axes": lambda: {"mamba": call(first(StateSpace, "jamba-v0.1"), LENGTH)},
    f"{TOWERS}.image_patch_count": lambda: {SEEING: call(*seeing())},
    f"{TOWERS}.pixel_bytes": lambda: {SEEING: call(*seeing())},
    f"{TOWERS}.table_bytes": lambda: {SEEING: call(*seeing())},
    f"{TOWERS}.kept_beside": lambda: {SEEING: call(*seeing(), how("transformers"))},
    f"{TOWERS}.named_beside": lambda: {SEEING: call(*seeing(), how("transformers"))},
    f"{TOWERS}.tower_axes": lambda: {SEEING: call(seeing()[0].stacks[1].runs[0].pattern[0], seeing()[1])},
    "pictures.patch_values": lambda: {"vit-base": call(spec("vit-base").embeddings)},
    "pictures.picture_bytes": lambda: {"vit-base": call(spec("vit-base"), plan())},
    "runtime.kept_rest_bytes": lambda: {"one size": call([(symbol("bytes"), symbol("tensors"))])},
    "runtime.loading_slack": lambda: {"one size": call([(symbol("bytes"), symbol("tensors"))])},
    "gradients.master_copy_step_moments": lambda: {"one tensor": call(((TENSOR, symbol("n")),), plan("megatron"))},
}  # fmt: skip
