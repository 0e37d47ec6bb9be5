"""Tensors that steps of engines allocate, and the functions that ask for them, for ``tensor_names.py``.

They come from tapes of operations (formulas/tapes), from arithmetic over a model's weights by the sources of
each wrapper, or from a file of ``traced_tensors.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import memsheet
from memsheet.budget import Answer
from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.formulas.activations import check_modelled, run_config_of
from memsheet.formulas.model_code import engine_for, model_code
from memsheet.formulas.recordings import record_block, record_head, record_loss
from memsheet.formulas.tapes.tape import Event, Tape
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec, Moe, Role, Weight
from memsheet.readers.model import read_model
from memsheet.units import MIB

PAGE, LEAST, SEGMENT = 2 * MIB, 16 * MIB, 20 * MIB
"""What the allocator rounds larger requests up to, the smallest that are asked about, and what it takes for
those below 10 MiB (c10/cuda/CUDACachingAllocator.h, kRoundLarge, kLargeBuffer).
"""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "bool": 1, "uint8": 1, "int64": 8, "int32": 4}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "bool": "bool", "int64": "int64"}
WEIGHTS = ("parameters", "optimizer_states", "unsharded_parameters", "master_weights", "gradients")
MATRICES = (Role.LINEAR, Role.EMBEDDING, Role.HEAD, Role.EXPERT)
Frame = tuple[str, int, str, str]
"""File, line, function and code of a traceback's frame."""


class Truth(NamedTuple):
    """A tensor that a step allocates. ``kind``: activation, logits, scores, weight (or what is as large as
    one), unit (many weights as one), cache; ``said``: what its text has to say beside the model for
    arithmetic to name it.
    """

    engine: str
    model: str
    kind: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    frames: tuple[Frame, ...]
    options: Mapping[str, Any]
    said: tuple[str, ...] = ("lengths",)

    @property
    def size(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]

    @property
    def ranks(self) -> int:
        """Those that the options name."""
        return int(str(self.options.get("gpus", "1x")).partition("x")[0])

    @property
    def is_told_apart(self) -> bool:
        """Whether a message says its own size: a segment's stands for any that is smaller."""
        return self.size >= LEAST and -(-self.size // PAGE) * PAGE != SEGMENT


FRAMES: dict[str, tuple[Frame, ...]] = {
    "module": (("torch/nn/modules/module.py", 1784, "_call_impl", "return forward_call(*args, **kwargs)"),),
    "product": (("torch/nn/modules/linear.py", 134, "forward", "return F.linear(input, self.weight, self.bias)"),),
    "norm": (("transformers/models/llama/modeling_llama.py", 66, "forward", "return self.weight * hidden_states.to(input_dtype)"),),
    "scores": (("transformers/models/llama/modeling_llama.py", 178, "eager_attention_forward", "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)"),),
    "backward": (
        ("torch/_tensor.py", 648, "backward", "torch.autograd.backward("), ("torch/autograd/__init__.py", 353, "backward", "_engine_run_backward("),
        ("torch/autograd/graph.py", 824, "_engine_run_backward", "return Variable._execution_engine.run_backward("),
    ),
    "states": (("torch/optim/optimizer.py", 493, "wrapper", "out = func(*args, **kwargs)"), ("torch/optim/adamw.py", 148, "_init_group", 'state["exp_avg"] = torch.zeros_like(')),
    "step": (("torch/optim/optimizer.py", 493, "wrapper", "out = func(*args, **kwargs)"), ("torch/optim/adamw.py", 600, "_multi_tensor_adamw", "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)")),
    "load": (("transformers/modeling_utils.py", 5048, "from_pretrained", ") = cls._load_pretrained_model("), ("transformers/modeling_utils.py", 920, "_load_state_dict_into_meta_model", "param = param.to(device)")),
    "zero masters": (("deepspeed/runtime/engine.py", 1532, "_configure_zero_optimizer", "optimizer = DeepSpeedZeroOptimizer("), ("deepspeed/runtime/zero/stage_1_and_2.py", 395, "__init__", "weights_partition = self.parallel_partitioned_bit16_groups[i][partition_id].to(")),
    "zero states": (("deepspeed/runtime/zero/stage_1_and_2.py", 692, "initialize_optimizer_states", "self.optimizer.step()"), ("torch/optim/adam.py", 178, "_init_group", 'state["exp_avg"] = torch.zeros_like(')),
    "zero group": (("deepspeed/runtime/zero/stage_1_and_2.py", 352, "__init__", "self.flatten_dense_tensors_aligned("),),
    "zero bucket": (("deepspeed/runtime/zero/stage_1_and_2.py", 880, "setup_buckets", "buf_0 = torch.empty(int(self.reduce_bucket_size), dtype=self.dtype)"),),
    "zero 3 masters": (("deepspeed/runtime/zero/stage3.py", 780, "_create_fp32_partitions", "self.fp32_partitioned_groups_flat.append("),),
    "zero 3 gather": (("deepspeed/runtime/zero/partitioned_param_coordinator.py", 326, "fetch_sub_module", "self.__all_gather_params(params_to_fetch, forward)"), ("deepspeed/runtime/zero/partition_parameters.py", 1248, "all_gather_coalesced", "param_buffer = torch.empty(")),
    "flat unit": (("torch/distributed/fsdp/_runtime_utils.py", 290, "_unshard", "handle.unshard()"), ("torch/distributed/fsdp/_flat_param.py", 1330, "_alloc_padded_unsharded_flat_param", "_alloc_storage(unsharded_flat_param, flat_param._padded_unsharded_size)")),
    "gradient buffer": (("megatron/core/distributed/param_and_grad_buffer.py", 620, "__init__", "self.grad_data = torch.zeros("),),
}  # fmt: skip
"""The last functions of a traceback, as each project names them; their lines are of no version."""
OF_PART: dict[bool, tuple[tuple[str, tuple[Frame, ...]], ...]] = {
    True: (
        (r"linear_qkv|linear_fc1", (("transformer_engine/pytorch/module/layernorm_linear.py", 310, "forward", "gemm_out, *_, reduce_scatter_out = general_gemm("),)),
        (r"linear_proj|linear_fc2", (("transformer_engine/pytorch/module/linear.py", 340, "forward", "gemm_out, *_, reduce_scatter_out = general_gemm("),)),
        (r"activation", (("megatron/core/fusions/fused_bias_swiglu.py", 18, "swiglu", "return F.silu(y_1) * y_2"),)),
        (r"permuted|sorted", (("megatron/core/transformer/moe/moe_utils.py", 260, "permute", "permuted_input = tokens.index_select(0, sorted_indices)"),)),
        (r"output_layer|logits", (("megatron/core/tensor_parallel/layers.py", 880, "forward", "output_parallel = self._forward_impl("),)),
        (r"loss|softmax|exp", (("megatron/core/tensor_parallel/cross_entropy.py", 133, "forward", "VocabParallelCrossEntropy.calculate_logits_max("),)),
        (r"", (("megatron/core/transformer/transformer_layer.py", 512, "forward", "hidden_states = self._forward_mlp(hidden_states)"),)),
    ),
    False: (
        (r"(?:proj|lm_head|dense)[^/]*/output", FRAMES["product"]), (r"att[^/]*/(?:scores|softmax|probabilities)", FRAMES["scores"]),
        (r"norm", FRAMES["norm"]), (r"", FRAMES["module"]),
    ),
}  # fmt: skip
"""What runs where a part of a tape is made: by Megatron's modules, or by those of transformers."""


@lru_cache(maxsize=256)
def planned_answer(model: str, words: tuple[tuple[str, Any], ...]) -> Answer | None:
    """The plan of a job; None where it is refused."""
    try:
        return memsheet.train(model, **dict(words))
    except InputError:
        return None


@lru_cache(maxsize=64)
def bundled_spec(model: str) -> ModelSpec:
    entry = find_model(model)
    assert entry is not None, model
    return read_model(dict(entry["config"]), catalog=find_model)


def taped_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """What the tapes of a step's blocks and ends hold on one rank."""
    answer = planned_answer(model, tuple({"engine": engine, **words}.items()))
    if answer is None or answer.model.recording is not None:
        return
    spec, plan = answer.model, answer.plan
    found = engine_for(spec, plan)
    try:
        check_modelled(spec, plan, found)
    except InputError:
        return
    code, shape, how = model_code(found.layers), plan.training.shape, run_config_of(plan, found)
    for block in dict.fromkeys(spec.blocks()):
        try:
            tape = record_block(code.on_rank(block, plan), code.block_numerics(block, plan, shape, how))
            axes = code.axes(block, plan, shape)
        except (InputError, KeyError, ValueError):  # layers that another module records
            continue
        yield from _tensors_of_tape(tape, axes, (engine, model, words))
    if spec.head.kind != "none":
        how = code.at_ends(replace(how, positions_each=code.positions_each(spec), head=spec.head.kind))
        axes = code.end_axes(spec, plan, shape)
        norms = spec.stacks[-1].final_norms
        yield from _tensors_of_tape(
            record_head(norms, spec.head, how, plan.loss, "", "lm_head"),
            axes,
            (engine, model, words),
            end=True,
        )
        yield from _tensors_of_tape(
            record_loss(how, plan.loss, "lm_head"), axes, (engine, model, words), end=True
        )


def _tensors_of_tape(
    tape: Tape, axes: Mapping[str, Any], job: tuple[str, str, Mapping[str, Any]], *, end: bool = False
) -> Iterator[Truth]:
    engine, model, words = job
    forward = {number for event, number in tape.forward if event is Event.ALLOC}
    seen: set[tuple[Any, ...]] = set()
    for number, entry in enumerate(tape.entries):
        if entry.terms is not None or entry.dtype.name not in SHORT:
            continue
        sizes = tuple(int(axis if isinstance(axis, int) else axes[axis]) for axis in entry.shape)
        back = number not in forward
        if (key := (sizes, entry.dtype.name, entry.path, back)) in seen:
            continue
        seen.add(key)
        kind = _kind_of_sizes(sizes, model, words, end=end, weight=entry.gradient or entry.weight_cast)
        frames = next(f for pattern, f in OF_PART[engine == "megatron"] if re.search(pattern, entry.path))
        yield Truth(
            engine, model, kind, entry.path, sizes, SHORT[entry.dtype.name], FRAMES["backward"] if back else frames, words,
            () if kind == "weight" else ("lengths",),
        )  # fmt: skip


def _kind_of_sizes(
    sizes: tuple[int, ...], model: str, words: Mapping[str, Any], *, end: bool, weight: bool
) -> str:
    flat = "tp" in words  # whose experts' tokens lie in two axes, as weights do
    alike = len(sizes) == 2 and not flat and tuple(sorted(sizes)) in shapes_of_weights(model)
    if (weight and not end) or alike:
        return "weight"
    vocabulary = bundled_spec(model).vocab
    if end and any(abs(size * int(words.get("tp", 1)) - vocabulary) <= 1024 for size in sizes):
        return "logits"
    squares = len(sizes) == 4 and sizes[2] == words["seq_len"] and sizes[3] - sizes[2] in (0, 1)
    return "scores" if squares else "activation"


def weights_of_spec(spec: ModelSpec) -> list[tuple[int, Weight]]:
    """How often each weight is there."""
    norms = (*spec.embeddings.norms, *(norm for stack in spec.stacks for norm in stack.final_norms))
    outer = (
        *spec.embeddings.weights,
        *spec.head.weights,
        *spec.extras,
        *(w for n in norms for w in n.weights),
    )
    runs = [run for stack in spec.stacks for run in stack.runs]
    found = [(1, w) for w in outer] + [
        (run.count, w) for run in runs for block in run.pattern for w in block.weights
    ]
    return [(count, weight) for count, weight in found if weight.role is not Role.BUFFER]


@lru_cache(maxsize=64)
def shapes_of_weights(model: str) -> frozenset[tuple[int, ...]]:
    """Of a bundled model, each sorted: a matrix may lie either way."""
    return frozenset(tuple(sorted(weight.shape)) for _, weight in weights_of_spec(bundled_spec(model)))


def state_tensors(engine: str, model: str, words: Mapping[str, Any]) -> Iterator[Truth]:
    """Weights, states and buffers of many weights on one rank: deepspeed/runtime/zero/stage_1_and_2.py and
    stage3.py (sub_group_size: 10^9 elements), torch/distributed/fsdp/_flat_param.py,
    megatron/core/distributed/param_and_grad_buffer.py.
    """
    answer = planned_answer(model, tuple({"engine": engine, **words}.items()))
    if answer is None or answer.model.towers:
        return
    spec, weights = answer.model, weights_of_spec(answer.model)
    ranks, tp = int(str(words.get("gpus", "1x")).partition("x")[0]), int(words.get("tp", 1))
    whole = sum(count * weight.elements for count, weight in weights)
    layers = [sum(w.elements for w in block.weights if w.role is not Role.BUFFER) for block in spec.blocks()]
    outer = whole - sum(
        run.count
        * sum(w.elements for block in run.pattern for w in block.weights if w.role is not Role.BUFFER)
        for stack in spec.stacks
        for run in stack.runs
    )
    share, matrices = (
        -(-whole // ranks),
        list({w.shape: w for _, w in weights if w.role in MATRICES}.values()),
    )

    def unit(part: str, elements: int, dtype: str, frames: str, *said: str) -> Truth:
        return Truth(engine, model, "unit", part, (elements,), dtype, FRAMES[frames], words, said)

    if engine == "deepspeed" and words["zero"] == 2:
        yield unit("masters", share, "float32", "zero masters", "ranks")
        yield unit("states", share, "float32", "zero states", "ranks")
        yield unit("group", whole, "bfloat16", "zero group")
        yield unit("bucket", 500_000_000, "bfloat16", "zero bucket")
    if engine == "deepspeed" and words["zero"] == 3:
        if share < 10**9:
            yield unit("masters", share, "float32", "zero 3 masters", "ranks")
        for w in matrices:
            yield Truth(
                engine, model, "weight", w.path, w.shape, "bfloat16", FRAMES["zero 3 gather"], words, ()
            )
    if engine == "fsdp1":
        for part, elements in (("layer", max(layers)), ("outer", outer)):
            share = -(-elements // ranks)
            yield unit(part, share * ranks, "bfloat16", "flat unit")
            yield unit(part, share, "float32", "states", "ranks")
    if engine == "transformers":
        dtype = "bfloat16" if words["precision"] == "bf16-pure" else "float32"
        for w in matrices:
            for asked in ("states", "step", "load"):
                yield Truth(engine, model, "weight", w.path, w.shape, dtype, FRAMES[asked], words, ())
    dense = not any(isinstance(block.feed_forward, Moe) for block in spec.blocks())
    if engine == "megatron" and words.get("pp", 1) == 1 and dense:
        held = sum(count * (w.elements // (tp if w.cut is not None else 1)) for count, w in weights)
        yield unit("gradient buffer", held, "float32", "gradient buffer", "parts")


def traced_truths(case: Mapping[str, Any]) -> Iterator[Truth]:
    """Those of one case of a file of ``traced_tensors.py``, with what kind each is."""
    words, spec = case["options"], bundled_spec(case["model"])
    engine, weights = f"{words.get('engine', 'transformers')}, traced", shapes_of_weights(case["model"])
    tokens = words["seq_len"] * words["microbatch"]
    for each in case["tensors"]:
        shape, dtype = tuple(each["shape"]), each["dtype"]
        kind = _kind_of_traced(each, shape, weights, tokens, words, spec.vocab)
        strays = kind == "activation" and math.prod(shape) % words["seq_len"]  # of no number of tokens
        if dtype not in BYTES or strays:
            continue
        frames = tuple(tuple(frame) for frame in each["frames"] if frame[0] != "torch/utils/_device.py")
        yield Truth(
            engine, case["model"], kind, f"{each['module']}/{each['op']}", shape, dtype,
            FRAMES["load"] if each["instant"] == "load" else frames, words,  # type: ignore[arg-type]
            ("ranks",) if kind == "unit" else () if kind == "weight" else ("lengths",),
        )  # fmt: skip


def _kind_of_traced(
    each: Mapping[str, Any],
    shape: tuple[int, ...],
    weights: frozenset[tuple[int, ...]],
    tokens: int,
    words: Mapping[str, Any],
    vocabulary: int,
) -> str:
    whole = tuple(sorted(shape)) in weights
    copies = each["op"] in ("aten._to_copy", "aten.empty", "aten.mm", "aten.t") and tokens not in shape
    if each["component"] in WEIGHTS or each["instant"] in ("load", "optimizer_step"):
        return "weight" if whole else "unit"
    if whole and len(shape) == 2 and copies:
        return "weight"
    if vocabulary in shape:
        return "weight" if whole and each["op"] != "aten.mm" else "logits"
    squares = len(shape) > 2 and shape[-2] == words["seq_len"] and shape[-1] - shape[-2] in (0, 1)
    if squares and (len(shape) == 4 or shape[0] > words["microbatch"]):
        return "scores"
    return "unit" if len(shape) == 1 else "activation"
