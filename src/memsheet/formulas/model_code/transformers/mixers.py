"""The mixers of the transformers library's blocks besides softmax attention over grouped keys and values
(``attention.py``): which function runs one, what its axes are, what the model shares for it, what is not
modelled of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memsheet.arith import Count
from memsheet.errors import Problem
from memsheet.formulas.model_code.transformers.families import DELTA, LLAMA4, family_traits
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mixer,
    ModelSpec,
    Moe,
    Run,
    StateSpace,
    Weight,
)
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.references import TRANSFORMERS, formula

with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.delta import delta_axes, delta_net
    from memsheet.formulas.model_code.transformers.fused_scan import fused_mamba_mixer
    from memsheet.formulas.model_code.transformers.gated_attention import gated_attention
    from memsheet.formulas.model_code.transformers.latent import (
        latent_attention,
        latent_axes,
        latent_problem,
        latent_table,
    )
    from memsheet.formulas.model_code.transformers.llama4 import llama4_attention, rotary_table
    from memsheet.formulas.model_code.transformers.pooled import pooling_notes
    from memsheet.formulas.model_code.transformers.sinks import sink_attention
    from memsheet.formulas.model_code.transformers.split_scan import split_axes, split_scan
    from memsheet.formulas.model_code.transformers.state_space import state_space_axes, unfused_mamba_mixer

if TYPE_CHECKING:
    from memsheet.formulas.numerics import RunConfig
    from memsheet.formulas.tapes.graph import Tensor
    from memsheet.formulas.tapes.recorder import Recorder
with late_functions(__name__):
    from memsheet.formulas.model_code.transformers.norms import apply_norm
    from memsheet.formulas.numerics import run_checkpointed


FUSED = frozenset({"mamba", "falcon_mamba"})
"""Families whose state-space mixer is one operation in training."""
SPLIT = frozenset({"mamba2", "bamba"})
"""Families whose Mamba 2 mixer is one operation in training."""
TAKEN_APART = ("dt_proj", "x_proj", "out_proj")
"""Matrices that are read from their modules: all by a mixer that is a single operation (Mamba 2 has the last
alone), else the first.
"""

PLAIN_DELTA = (
    "linear attention runs in torch's plain operations, as without the flash-linear-attention and "
    "causal-conv1d packages; with them its "
    "kernels keep less, which is not modelled"
)


def weights_of_units_inside(block: Block) -> tuple[Weight, ...]:
    """Those of a mixer that the library never splits either (modeling_mamba.py, _no_split_modules)."""
    return tuple(w for mixer in block.mixers for w in mixer.weights) if block.kind in FUSED else ()


def mixer_output(
    r: Recorder, x: Tensor, mixer: Mixer, how: RunConfig, kind: str
) -> tuple[Tensor, Tensor | None]:
    """What a mixer says, and its probabilities where it has any."""
    if isinstance(mixer, StateSpace):
        return (fused_mamba_mixer if kind in FUSED else split_scan if kind in SPLIT else unfused_mamba_mixer)(
            r, x, mixer, how
        ), None
    if isinstance(mixer, LinearAttention):
        return delta_net(r, x, mixer, how), None
    if isinstance(mixer, Attention) and mixer.gated_output:
        return gated_attention(r, x, mixer, how, family_traits(kind))
    if isinstance(mixer, Attention):
        return llama4_attention(r, x, mixer, how) if kind == LLAMA4 else sink_attention(r, x, mixer, how)
    assert isinstance(mixer, LatentAttention)
    return latent_attention(r, x, mixer, how, kind)


def mixed_alone(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """A norm and a mixer, added to the stream, which may be wider than they are
    (modeling_mamba.py:513-531).
    """
    (mixer,), (norm,) = block.mixers, block.norms
    handed = r.cast(x, how.parameters, "/handed") if how.handed_low else x  # there until the layer returns
    y = apply_norm(r, r.cast(handed, how.parameters, "/narrow"), norm, how)
    x = r.cast(handed, FP32, "/residual") if block.wide_residual else handed
    return r.add(
        run_checkpointed(r, lambda z: mixer_output(r, z, mixer, how, block.kind)[0], y, mixer.path, how),
        x,
        "/residual",
    )


def spec_with_fp32_stream(spec: ModelSpec) -> ModelSpec:
    """A model whose layers hand on fp32, with a first layer of its own, which is handed what the embeddings
    make.
    """
    blocks = spec.blocks()
    if not blocks or not all(block.wide_residual for block in blocks):
        return spec
    return replace(
        spec, stacks=tuple(replace(stack, runs=_fp32_stream_runs(stack.runs)) for stack in spec.stacks)
    )


def _fp32_stream_runs(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    wide = tuple(
        replace(run, pattern=tuple(replace(block, wide_input=True) for block in run.pattern)) for run in runs
    )
    first = replace(wide[0], pattern=(runs[0].pattern[0], *wide[0].pattern[1:]), count=1)
    again = (replace(wide[0], count=runs[0].count - 1),) if runs[0].count > 1 else ()
    return (first, *again, *wide[1:])


def is_plain_attention(mixer: Mixer, kind: str) -> bool:
    """Whether ``attention.py`` runs it."""
    return isinstance(mixer, Attention) and not (mixer.sinks or mixer.gated_output) and kind != LLAMA4


@formula(cites=TRANSFORMERS, at="modeling files: shapes of the mixer's tensors")
def mixer_axes(mixer: Mixer, seq_len: Count) -> dict[str, Count]:
    """Values of the axes that a mixer's tensors are named by."""
    if isinstance(mixer, StateSpace):
        return split_axes(mixer, seq_len) if mixer.kind == "mamba2" else state_space_axes(mixer, seq_len)
    if isinstance(mixer, LinearAttention):
        return delta_axes(mixer, seq_len)
    assert isinstance(mixer, LatentAttention)
    return latent_axes(mixer)


def other_tables(blocks: Sequence[Block], seq_len: Count, how: RunConfig) -> list[Count]:
    """Bytes of the rotary tables that layers with such mixers share."""
    every = [(block.kind, mixer) for block in blocks for mixer in block.mixers]
    latent = {
        (kind, mixer.qk_rope_head_dim): mixer for kind, mixer in every if isinstance(mixer, LatentAttention)
    }
    turned = {
        mixer.rotary_dim: mixer
        for kind, mixer in every
        if kind == LLAMA4 and isinstance(mixer, Attention) and mixer.rotary_dim
    }
    return [
        *(latent_table(mixer, kind, seq_len, how) for (kind, _), mixer in latent.items()),
        *(rotary_table(mixer, seq_len) for mixer in turned.values()),
    ]


def other_masks(blocks: Sequence[Block]) -> set[int | None]:
    """The masks that eager layers with such mixers take, by their window."""
    return {None for block in blocks for mixer in block.mixers if isinstance(mixer, LatentAttention)}


def sparse_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What a model with experts or state spaces is asked for and is not recorded: a loss over all routers'
    logits, adapters beside matrices that a kernel takes without their modules.
    """
    blocks = spec.blocks()
    found = []
    if spec.router_loss and any(isinstance(block.feed_forward, Moe) for block in blocks):
        reason = "adds a loss of the routers' own (load_balancing_loss_func), which is not modelled"
        found.append(
            Problem(
                field="output_router_logits", value=True, reason=reason, hint="false, the library's default"
            )
        )
    scanned = {block.kind for block in blocks for mixer in block.mixers if isinstance(mixer, StateSpace)}
    idle = {
        name
        for kind in scanned
        for name in (TAKEN_APART if kind in FUSED else TAKEN_APART[2:] if kind in SPLIT else TAKEN_APART[:1])
    }
    unused = sorted(idle & set(plan.adapter.targets)) if plan.adapter else []
    others = [name for name in plan.adapter.targets if name not in unused] if plan.adapter else []
    reason = "is taken by a kernel without its module, so that its adapter never runs"
    biased = any(
        w.path.endswith("out_proj.bias") for block in blocks if block.kind in FUSED for w in block.weights
    )
    if biased and plan.precision.parameters is not FP32:
        name, why = (
            plan.precision.parameters.name,
            (
                "is that of matrices whose bias the mixer raises to fp32 (use_bias), and torch "
                "refuses such a pair"
            ),
        )
        found.append(
            Problem(field="precision.parameters", value=name, reason=why, hint="--precision bf16-autocast")
        )
    sharding = engine_of(plan).sharding
    if scanned & FUSED and sharding.gathers and not sharding.nests_units:
        inside = (
            "shards each mixer apart from its layer (_no_split_modules names both), which is not modelled"
        )
        found.append(
            Problem(
                field="engine",
                value=plan.engine,
                reason=inside,
                hint="fsdp2 or deepspeed; `memsheet trace` runs it",
            )
        )
    if scanned & FUSED and sharding.nests_units and plan.recompute.mode is not RecomputeMode.NONE:
        again = "gathers each mixer once more where a layer runs again, which is not modelled"
        found.append(
            Problem(
                field="recompute.mode",
                value=plan.recompute.mode.value,
                reason=again,
                hint="none; `memsheet trace` runs it",
            )
        )
    found += _delta_problems(blocks, plan)
    return [
        *found,
        *(
            Problem(
                field="adapter.targets",
                value=name,
                reason=reason,
                hint=f"--lora-targets {','.join(others)}" if others else "name others",
            )
            for name in unused
        ),
    ]


def _delta_problems(blocks: Sequence[Block], plan: Plan) -> list[Problem]:
    """In fp32 nothing is cast, so that heads stay views of positions and products copy them; on the way to
    the host every chunk's tensors would be copies of their own.
    """
    if not any(isinstance(mixer, LinearAttention) for block in blocks for mixer in block.mixers):
        return []
    found = []
    if plan.precision.parameters is FP32 and not plan.precision.casts:
        reason = "keeps other copies in linear attention, which are not modelled"
        found.append(
            Problem(
                field="precision",
                value="fp32",
                reason=reason,
                hint="bf16-pure or bf16-autocast; `memsheet trace` runs it",
            )
        )
    if plan.offload.activations:
        reason = "takes linear attention's chunks to the host one by one, which is not modelled"
        found.append(
            Problem(
                field="offload.activations",
                value=True,
                reason=reason,
                hint="leave it out; `memsheet trace` runs it",
            )
        )
    return found


def kernel_notes(spec: ModelSpec) -> tuple[str, ...]:
    """Which packages the layers are taken to run with, and what a model without a head is trained on."""
    mixers = spec.mixers()
    if notes := pooling_notes(spec):
        return notes
    if any(isinstance(mixer, LinearAttention) for mixer in mixers):
        return (PLAIN_DELTA,)
    if not any(isinstance(mixer, StateSpace) for mixer in mixers):
        return ()
    return (
        (
            "state-space layers run with the mamba-ssm and causal-conv1d packages; without them plain "
            "operations keep more, token by token"
        ),
    )


def mixer_problem(mixer: Mixer) -> str | None:
    """Why a mixer cannot be recorded, or None when it can."""
    if isinstance(mixer, StateSpace):
        return (
            f"the kernels of a {mixer.kind} mixer are not" if mixer.kind not in ("mamba", "mamba2") else None
        )
    if isinstance(mixer, LinearAttention) and mixer.kind == DELTA:
        return None
    if isinstance(mixer, Attention):
        return "its attention has biases" if mixer.position_bias else None
    return (
        latent_problem(mixer)
        if isinstance(mixer, LatentAttention)
        else f"its mixer is {type(mixer).__name__}"
    )
