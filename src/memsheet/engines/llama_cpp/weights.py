"""Every tensor of a model as llama.cpp stores it: its layer, its name in a GGUF file, its bytes on a
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.arith import round_up
from memsheet.engines.llama_cpp.facts import is_fork
from memsheet.engines.llama_cpp.ggml import ALIGNMENT
from memsheet.engines.llama_cpp.gguf_mixes import BESIDE_EXPERTS, EXPERTS_ALONE, Where
from memsheet.engines.llama_cpp.gguf_types import RULED, Mix, type_range, types_of_end, types_of_matrix
from memsheet.engines.llama_cpp.options import llama_cpp_options
from memsheet.engines.llama_cpp.states import Stateful
from memsheet.errors import input_error
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP32, GGUF, DType
from memsheet.plan.model import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    Moe,
    Role,
    StoredQuantization,
    Weight,
)
from memsheet.plan.plan import Plan
from memsheet.references import GGML, LLAMA_CPP, formula

ROW_PADDING = 512
"""Elements that the last row of a quantized matrix is padded to on a device (ggml-cuda.cu,
MATRIX_ROW_PADDING).
"""
KINDS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "qkv_proj": "attn_qkv", "query_key_value": "attn_qkv", "c_attn": "attn_qkv",
    "o_proj": "attn_output", "dense": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down", "w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "fc1_latent_proj": "ffn_latent_down", "fc2_latent_proj": "ffn_latent_up",
}  # fmt: skip
STATEFUL_KINDS = {
    "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_b": "ssm_beta", "in_proj_a": "ssm_alpha", "in_proj_ba": "ssm_ba",
    "in_proj": "ssm_in", "out_proj": "ssm_out", "conv1d": "ssm_conv1d", "dt_bias": "ssm_dt", "A_log": "ssm_a", "D": "ssm_d", "norm": "ssm_norm",
}  # fmt: skip
"""Names in a file of what a layer with a recurrent state has (llama.cpp 0c1e5709 src/llama-arch.cpp)."""
APART = "in_proj_qkvz"
"""The projection of a delta net that a file keeps as two (conversion/qwen.py, Qwen3NextModel)."""
MODULES = {
    "attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj", "ffn_gate": "gate_proj", "ffn_up": "up_proj",
    "ffn_down": "down_proj", "attn_q_a": "q_a_proj", "attn_q_b": "q_b_proj", "attn_kv_a_mqa": "kv_a_proj_with_mqa", "attn_k_b": "kv_b_proj",
    "attn_qkv": "in_proj_qkv", "attn_gate": "in_proj_z", "ssm_beta": "in_proj_b", "ssm_alpha": "in_proj_a", "ssm_ba": "in_proj_ba",
    "ssm_in": "in_proj", "ssm_out": "out_proj", "ffn_gate_up": "gate_up_proj", "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection",
    "per_layer_model_proj": "per_layer_model_projection", "ffn_latent_down": "fc1_latent_proj", "ffn_latent_up": "fc2_latent_proj",
}  # fmt: skip
"""Names in the model's own code of what a file calls otherwise."""
CONVERTED = {"mxfp4": "MXFP4"}
"""Released formats of experts that a GGUF file keeps, whatever its other tensors are in (ggml-org/llama.cpp
2984e6e8 conversion/gpt_oss.py repack_mxfp4).
"""
TOKENS, OUTPUT = "token_embd", "output"
LAYER_TOKENS = "per_layer_token_embd"
"""The table of every word's vectors for every layer, which the host looks up (src/models/gemma4.cpp)."""
FIRST_LAYERS = {
    "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
"""Tensors of the whole model that lie with its first layer, and that no quantizer touches (llama-quant.cpp,
tensor_allows_quantization).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One tensor. ``layer`` is -1 outside of layers; ``expert``: of routed experts; ``module``: its last name
    in the model's own code; ``type_name``: that of its numbers.
    """

    layer: int
    kind: str
    module: str
    nbytes: int
    padding: int
    expert: bool = False
    low: int = -1  # of types that a mix may have in its place; the file's own have none
    high: int = -1
    type_name: str = ""
    device: int | None = None  # of one that lies elsewhere than its layer

    @property
    def on_device(self) -> int:
        return _device_bytes(self.nbytes, self.padding)

    def ends(self) -> tuple[int, int]:
        """What it takes at least and at most on a device."""
        low, high = (self.nbytes if end < 0 else end for end in (self.low, self.high))
        return _device_bytes(low, self.padding), _device_bytes(high, self.padding)


@formula(
    cites=GGML,
    at=(
        "ggml-alloc.c ggml_backend_alloc_ctx_tensors_from_buft: every tensor from a multiple of the "
        "buffer's alignment"
    ),
)
def _device_bytes(nbytes: int, padding: int) -> int:
    """What a tensor takes of a device's buffer."""
    return round_up(nbytes + padding, ALIGNMENT)


def stored_tensors(spec: ModelSpec, plan: Plan) -> tuple[Stored, ...]:
    """As the file says where there is one and the plan names no other types, else as llama.cpp's quantizer
    would write it.
    """
    named = plan.quantization.weights.name if plan.quantization else None
    own = spec.quantization.weights if spec.quantization else None
    if spec.source.tensors and named == own:
        return split_latents(
            spec,
            plan,
            loaded_of(spec, (_in_file(name, kind, dims) for name, kind, dims in spec.source.tensors)),
        )
    if named is not None and not named.startswith("gguf:") and named not in CONVERTED:
        raise input_error(
            "quantization.weights",
            named,
            "is no type of a GGUF file",
            "for example --quantize gguf:Q4_K_M, or gguf:Q8_0",
        )
    whole = {"fp32": "F32", "bf16": "BF16"}.get(plan.precision.parameters.name, "F16")
    written = whole if named is None or named in CONVERTED else named.removeprefix("gguf:")
    mix = Mix.of(written, fork=is_fork(plan.engine_version))
    kept = _kept_experts(spec.quantization)
    return split_latents(
        spec,
        plan,
        (
            *_embedding_and_output_tensors(spec, mix),
            *_layer_tensors(spec, mix, kept=kept),
            *_first_layer_tensors(spec, mix.name),
        ),
    )


def _kept_experts(released: StoredQuantization | None) -> str | None:
    """The type that experts have in every file of a model, None where they follow the file's."""
    if released is None:
        return None
    return released.experts or CONVERTED.get(released.method)


def loaded_of(spec: ModelSpec, tensors: Iterable[Stored]) -> tuple[Stored, ...]:
    """Without the layers that predict further tokens, which stand after the model's own and are skipped
    unless they draft (load_tensors, TENSOR_SKIP; ggml-org/llama.cpp pull request 26296 for families that
    loaded them for a while).
    """
    layers = spec.layers
    return tuple(tensor for tensor in tensors if tensor.layer < layers)


WHOLE_LATENT = ("attn_kv_b", "kv_b_proj")


@formula(
    cites=LLAMA_CPP,
    at=(
        "ik_llama.cpp 8db70379 src/llama.cpp:8843 llm_prepare_mla: keys' part in Q8_0, values' as it is, "
        "where a file lacks them"
    ),
    counts="int",
)
def split_latents(spec: ModelSpec, plan: Plan, tensors: tuple[Stored, ...]) -> tuple[Stored, ...]:
    """With the halves of the matrix that unpacks latents, which -mla makes beside it unless a file has
    them.
    """
    split = {t.layer for t in tensors if t.kind == "attn_k_b"}
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    made = []
    for t in tensors if llama_cpp_options(plan).mla_mode else ():
        mixer = (
            next((m for m in blocks[t.layer].mixers if isinstance(m, LatentAttention)), None)
            if t.kind in WHOLE_LATENT
            else None
        )
        if mixer is None or t.layer in split:
            continue
        kept = GGUF[t.type_name.removeprefix("gguf:")]
        for kind, width, dtype in (
            ("attn_k_b", mixer.qk_nope_head_dim, GGUF["Q8_0"] if kept.block > 1 else kept),
            ("attn_v_b", mixer.v_head_dim, kept),
        ):
            made.append(
                _stored_tensor(
                    t.layer, kind, kind, mixer.heads * width * mixer.kv_lora_rank, mixer.kv_lora_rank, dtype
                )
            )
    return (*tensors, *made)


def _in_file(name: str, kind: str, dims: tuple[int, ...]) -> Stored:
    parts = name.split(".")
    elements = 1
    for n in dims:
        elements *= n
    layer = int(parts[1]) if parts[0] == "blk" else 0 if parts[0] in FIRST_LAYERS.values() else -1
    label = parts[2] if parts[0] == "blk" else parts[0]
    expert, shared = label.endswith("_exps"), label.endswith("_shexp")
    module = MODULES.get(label.removesuffix("_exps").removesuffix("_shexp"), label)
    return _stored_tensor(
        layer, label, f"shared.{module}" if shared else module, elements, dims[0], GGUF[kind], expert=expert
    )


@formula(
    cites=GGML,
    at=(
        "ggml-cuda.cu ggml_backend_cuda_buffer_type_get_alloc_size: the last row of a quantized matrix to "
        "512 elements"
    ),
)
def _stored_tensor(
    layer: int, kind: str, module: str, elements: int, row: int, dtype: DType, *, expert: bool = False
) -> Stored:
    extra = -row % ROW_PADDING
    padding = dtype.nbytes(round_up(extra, dtype.block)) if dtype.block > 1 else 0
    return Stored(
        layer=layer,
        kind=kind,
        module=module,
        nbytes=dtype.nbytes(elements),
        padding=padding,
        expert=expert,
        type_name=dtype.name,
    )


@formula(
    cites=LLAMA_CPP,
    at=(
        "llama-quant.cpp llama_tensor_get_type: the table as the main type, the output matrix in Q6_K "
        "beside most"
    ),
    counts="int",
)
def _embedding_and_output_tensors(spec: ModelSpec, mix: Mix) -> Iterator[Stored]:
    """Tables and the output matrix. A tied one is stored once, in the type of an output, and held twice where
    its two uses are apart.
    """
    tied = spec.head.tied or not spec.head.weights
    for weight in (*spec.embeddings.weights, *(w for norm in spec.embeddings.norms for w in norm.weights)):
        table = weight.role is Role.EMBEDDING and weight.shape[0] >= spec.vocab
        layers = table and weight.shape[-1] == spec.embeddings.layer_elements
        kind, name = (LAYER_TOKENS, LAYER_TOKENS) if layers else (TOKENS if table else "embd", "embed")
        if table:
            yield _end_tensor(weight, kind, name, mix, output=tied, tied=tied)
        else:
            yield _stored_tensor(-1, kind, name, weight.elements, weight.shape[-1], FP32)
    for weight in spec.head.weights:
        if len(weight.shape) > 1:
            yield _end_tensor(weight, OUTPUT, "head", mix, output=True, tied=tied)
        else:
            yield _stored_tensor(-1, OUTPUT, "head", weight.elements, weight.shape[-1], FP32)
    for stack in spec.stacks:
        for norm in stack.final_norms:
            yield from (
                _stored_tensor(-1, "output_norm", "norm", w.elements, w.shape[-1], FP32) for w in norm.weights
            )


def _end_tensor(weight: Weight, kind: str, module: str, mix: Mix, *, output: bool, tied: bool) -> Stored:
    row = weight.shape[-1]
    types = types_of_end(mix, output=output, tied=tied, row=row)
    found = _stored_tensor(-1, kind, module, weight.elements, row, GGUF[types[0]])
    return _with_type_range(found, weight, mix, types, OUTPUT if output else kind)


def _first_layer_tensors(spec: ModelSpec, mix: str) -> Iterator[Stored]:
    whole = GGUF[mix if mix in ("F32", "F16") else "BF16"]
    for weight in spec.extras:
        module = weight.path.removesuffix(".weight").split(".")[-1]
        if kind := FIRST_LAYERS.get(module):
            dtype = whole if len(weight.shape) > 1 else FP32
            yield _stored_tensor(0, kind, module, weight.elements, weight.shape[-1], dtype)


def _layer_tensors(spec: ModelSpec, mix: Mix, *, kept: str | None) -> Iterator[Stored]:
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    for layer, block in enumerate(blocks):
        where = _quantization_context(spec, block, layer, len(blocks))
        stateful = tuple(f"{m.path}." for m in block.mixers if isinstance(m, Stateful))
        ff = block.feed_forward
        dense = {w.path for w in ff.shared.weights} if isinstance(ff, Moe) and ff.shared else set[str]()
        for weight in _weights_of_file(block):
            module = weight.path.removesuffix(".weight").split(".")[-1]
            kept_apart = weight.path.startswith(stateful) if stateful else False
            kind = (STATEFUL_KINDS if kept_apart else KINDS).get(module, module)
            named = f"shared.{module}" if "shared" in weight.path or weight.path in dense else module
            own = mix if kept is None or weight.role is not Role.EXPERT else Mix.of(kept, fork=mix.fork)
            ruled = RULED_LIKE.get(kind, kind) if kept_apart else kind
            types = _matrix_types(weight, ruled, own, where)
            found = _stored_tensor(
                layer,
                kind,
                named,
                weight.elements,
                weight.shape[-1],
                GGUF[types[0]] if types else FP32,
                expert=weight.role is Role.EXPERT,
            )
            yield _with_type_range(found, weight, own, types, kind) if types else found


RULED_LIKE = {"attn_qkv": "attn_v"}
"""Matrices of a delta net that get their types by the rule of another kind (llama-quant.cpp,
category_is_attn_v).
"""


def _weights_of_file(block: Block) -> Iterator[Weight]:
    """A layer's tensors as a file has them: a delta net's joined projection is apart, its gate last."""
    gates = {m.path: m.value_heads * m.value_head_dim for m in block.mixers if isinstance(m, LinearAttention)}
    for weight in block.weights:
        path, _, name = weight.path.removesuffix(".weight").rpartition(".")
        if name != APART or path not in gates:
            yield weight
            continue
        rows, width = weight.shape
        for part, count in (("in_proj_qkv", rows - gates[path]), ("in_proj_z", gates[path])):
            yield replace(weight, path=f"{path}.{part}.weight", shape=(count, width))


def _with_type_range(stored: Stored, weight: Weight, mix: Mix, types: tuple[str, ...], kind: str) -> Stored:
    """With the least and the most that it takes in a file of that name. ``types``: that rules give it."""
    if mix.name in RULED and not mix.own_rules:
        return stored
    low, high = type_range(mix, kind, types, weight.elements)
    return replace(stored, low=low, high=high)


def _quantization_context(spec: ModelSpec, block: Block, layer: int, layers: int) -> Where:
    mixer = next((m for m in block.mixers if isinstance(m, Attention)), None)
    experts = block.feed_forward.experts if isinstance(block.feed_forward, Moe) else 0
    grouped = mixer.heads // mixer.kv_heads if mixer else 1
    return Where(
        layer=layer, layers=layers, grouped=grouped, experts=experts, family=spec.model_type, vocab=spec.vocab
    )


def _matrix_types(weight: Weight, kind: str, mix: Mix, where: Where) -> tuple[str, ...]:
    """Types that a matrix may have; none of what stays in fp32: norms, biases, routers and matrices of one
    row. ``kind``: whose rules it follows.
    """
    if weight.role not in (Role.LINEAR, Role.EXPERT) or len(weight.shape) < 2 or weight.shape[0] == 1:
        return ()
    if mix.name == EXPERTS_ALONE:
        return (mix.name if weight.role is Role.EXPERT else BESIDE_EXPERTS,)
    return types_of_matrix(mix, kind, where, weight.shape[-1])
