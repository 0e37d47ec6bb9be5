"""How vLLM loads weights."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.engines.vllm.cut_blocks import refined_experts
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.runtime import NVIDIA
from memsheet.formulas.serving.loaded import Ways, with_blocks, with_own_projections
from memsheet.formulas.serving.packed_experts import MARLIN, TENSORRT, TRITON, Kernel, Packing
from memsheet.formulas.states.held import HeldTensor
from memsheet.frozen import replace
from memsheet.plan.device import Device
from memsheet.plan.hardware import version_of
from memsheet.plan.model import Attention, Block, ModelSpec, Moe, Role, Tower, Weight
from memsheet.plan.plan import Plan
from memsheet.sheet import FromCode

ROUTER = ".mlp.gate.weight"
WIDE = {
    "gemma3n": ("correct_output_scale",), "gemma3n_text": ("correct_output_scale",), "glm4_moe": (ROUTER,),
    "glm4v_moe": (ROUTER,), "glm4_moe_lite": (ROUTER,), "minimax_m2": (ROUTER,), "mimo_v2_flash": (ROUTER,),
    "mimo_v2": (ROUTER,), "step3p5": (ROUTER,), "step3p7": (ROUTER,), "hy_v3": (ROUTER,), "afmoe": (".router.gate.weight",),
}  # fmt: skip
"""Parameters in fp32 whatever the model's dtype, by type (v0.33.0 model_executor/models/gemma3n.py:122,
glm4_moe.py:145, which glm4_moe_lite.py and glm4_1v.py take theirs from, minimax_m2.py:114, mimo_v2.py:159,
step3p5.py:343, hy_v3.py:159, afmoe.py:90).
"""
WAYS = Ways(
    rope=None, absorbs=False, refines=refined_experts, wide=WIDE, turns_wide=frozenset({"gpt_oss"}),  # v0.33.0 model_executor/models/gpt_oss.py:114
    table=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/vocab_parallel_embedding.py", 227),
    rotary=FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/rotary_embedding/base.py", 45),
    absorbed=FromCode("vllm-project/vllm", "v0.11.0", "vllm/v1/attention/backends/mla/common.py", 1084),
)  # fmt: skip
LIBRARY_SINCE = (0, 33)
LIBRARY = frozenset({
    "arcee", "cwm", "glm", "gpt_bigcode", "gpt_neox", "hunyuan_v1_dense", "hunyuan_v1_moe", "jais2", "mellum", "ministral",
    "olmo", "olmo2", "olmo3", "phi", "seed_oss", "smollm3", "starcoder2", "vaultgemma",
})  # fmt: skip
"""Types that are served with the library's own modules though other releases have code for them, and since
when (v0.33.0 model_executor/models/registry.py:747; ministral is named nowhere, and so served). Those turn by
frequencies that are kept twice (transformers modeling_rope_utils.py, inv_freq and original_inv_freq), not by
tables.
"""
QUERIES_ALONE_SINCE = (0, 30)
"""From when on layers that read an earlier one's keys and values have no projections to their own (v0.30.0
model_executor/models/gemma4.py, gemma3n.py, which v0.29.0 joins in every layer).
"""


WHOLE_ATTENTION, WHOLE_AUDIO, EVEN_AUDIO = (
    frozenset({"internvl"}),
    frozenset({"qwen2_5_omni"}),
    frozenset({"qwen3_omni_moe"}),
)
"""Types whose towers' attention is on every rank (v0.18.0 and v0.33.0
model_executor/models/interns1_vit.py:206, plain linear layers), whose audio towers are
(qwen2_5_omni_thinker.py, the library's), and whose audio towers are where ranks do not divide their heads
(v0.33.0 qwen3_omni_moe_thinker.py:211, 290).
"""


PADDED_EXPERTS, PADDED_SINCE, LEAST_ROWS = frozenset({"kimi_linear"}), (0, 33), 256
"""Types whose experts are padded where a rank has fewer rows of each, and since when (v0.33.0
models/kimi_k3/nvidia/model.py:419, which serves them there: registry.py).
"""


def as_built(part: ModelSpec, release: Release) -> ModelSpec:
    """The model with the matrices that a release makes."""
    built = part if release.since >= QUERIES_ALONE_SINCE else with_own_projections(part)
    if part.model_type in PADDED_EXPERTS and release.since >= PADDED_SINCE:
        built = with_blocks(built, _with_least_rows)
    return replace(built, towers=tuple(_tower_as_cut(tower, part.model_type) for tower in built.towers))


def _with_least_rows(block: Block) -> Block:
    """A block whose experts have so many rows on every rank."""
    routed = block.feed_forward
    if not isinstance(routed, Moe):
        return block
    weights = (
        replace(weight, least=LEAST_ROWS * weight.shape[weight.cut] // routed.intermediate)
        if weight.role is Role.EXPERT and weight.cut is not None
        else weight
        for weight in routed.weights
    )
    return replace(block, feed_forward=replace(routed, weights=tuple(weights)))


def _tower_as_cut(tower: Tower, model_type: str) -> Tower:
    """A tower with what its engine's code leaves whole."""
    audio = tower.path.endswith("audio_tower")
    if model_type not in WHOLE_ATTENTION and not (audio and model_type in WHOLE_AUDIO | EVEN_AUDIO):
        return tower

    def block_as_cut(block: Block) -> Block:
        heads = next(mixer.heads for mixer in block.mixers if isinstance(mixer, Attention))

        def cut(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
            if model_type in EVEN_AUDIO:
                return tuple(replace(weight, units=heads, even=True) for weight in weights)
            return tuple(replace(weight, cut=None, units=0) for weight in weights)

        mixers = tuple(replace(mixer, weights=cut(mixer.weights)) for mixer in block.mixers)
        dense = block.feed_forward
        if audio and dense is not None:
            dense = replace(dense, weights=cut(dense.weights))
        return replace(block, mixers=mixers, feed_forward=dense)

    runs = (replace(run, pattern=tuple(map(block_as_cut, run.pattern))) for run in tower.stack.runs)
    projector = tuple(replace(weight, cut=None, units=0) for weight in tower.projector)
    return replace(tower, stack=replace(tower.stack, runs=tuple(runs)), projector=projector)


def with_packed_ends(held: tuple[HeldTensor, ...], plan: Plan) -> tuple[HeldTensor, ...]:
    """The tensors, of which GGUF's tables of words are as packed as its matrices (v0.6.6 and v0.9.2
    model_executor/layers/quantization/gguf.py, GGUFEmbeddingMethod: rows are unpacked as they are looked up).
    """
    how = plan.quantization
    if how is None or not how.weights.name.startswith(GGUF):
        return held
    return tuple(
        replace(one, dtype=how.weights)
        if one.role in (Role.EMBEDDING, Role.HEAD)
        and len(one.shape) > 1
        and not any(f".{name}." in f".{one.path}" for name in how.skip)
        else one
        for one in held
    )


GGUF = "gguf:"


DROPS_SCALES_SINCE, COLUMNS_OF_FOUR_SINCE = (0, 25), (0, 26)
"""Since when experts of four bits have triton's scales alone, and their shares are padded to four (v0.25.0
fused_moe/oracle/mxfp4.py:1155, v0.24.0 keeps both; v0.26.0 quantization/utils/mxfp4_utils.py, v0.25.0 pads to
two).
"""
OPEN_EXPERTS = frozenset({"gpt_oss"})
"""Types whose experts of four bits run by an order of their own (v0.25.0 and v0.33.0
fused_moe/oracle/mxfp4.py, _get_priority_backends_for_gpt_oss).
"""


def packing_of(part: ModelSpec, release: Release, version: str | None, device: Device | None) -> Packing:
    """How a release keeps experts of four bits on a card."""
    since = version_of(version) if version else release.since
    older = since[:2] < DROPS_SCALES_SINCE
    major = (device.compute_capability or "").partition(".")[0] if device and device.vendor == NVIDIA else ""
    kernels = (KERNELS_BEFORE if older else KERNELS).get(major) if part.model_type in OPEN_EXPERTS else None
    return Packing(
        kernels=kernels or (TRITON,),
        closed=kernels is not None and TENSORRT not in kernels,
        keeps_scales=older,
        scale_columns=2 if since[:2] < COLUMNS_OF_FOUR_SINCE else 4,
        pads_rows=major not in MARLIN_ALONE if major else None,
    )


KERNELS: Mapping[str, tuple[Kernel, ...]] = {"8": (MARLIN,), "9": (TRITON,), "10": (TENSORRT,)}
"""Kernels of such experts by a card's major number: triton's on Hopper, Marlin's before, and TensorRT-LLM's
on the first Blackwell, where others may run (v0.33.0 fused_moe/oracle/mxfp4.py:402,
experts/gpt_oss_triton_kernels_moe.py:41).
"""
KERNELS_BEFORE: Mapping[str, tuple[Kernel, ...]] = {
    **KERNELS,
    "9": (TRITON, MARLIN),
    "12": (TRITON, MARLIN),
}
"""Before, Marlin's ran where triton's were not installed, and below 9.0 always (v0.11.0
model_executor/layers/quantization/mxfp4.py:95-102, get_mxfp4_backend; 007d5005 the same, and Marlin's from
11.0 on).
"""
MARLIN_ALONE = ("7", "8", "9")
"""Major numbers of cards without matrix units of four bits, where NVFP4 is Marlin's, which pads no expert
(v0.33.0 quantization/utils/marlin_utils_fp4.py, fused_moe/oracle/nvfp4.py).
"""


def ways_of(release: Release, version: str | None = None, device: Device | None = None) -> Ways:
    """How a release loads on a card."""
    own = replace(WAYS, packing=lambda part: packing_of(part, release, version, device))
    return replace(own, turns_in_place=LIBRARY) if release.since >= LIBRARY_SINCE else own
