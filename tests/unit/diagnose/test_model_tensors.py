"""Tensors of a named model by their sizes: each is found by the function that asked and its own product, and
sizes that are none are not named.
"""

from __future__ import annotations

import random
import re

import pytest
from tests.unit.diagnose.corpus import modern, traced

from laws import every
from memsheet.catalog import find_model
from memsheet.diagnose.cleaned import without_prefixes
from memsheet.diagnose.message import YES, Cause, Term
from memsheet.diagnose.model_tensors import OUTSIDE, units_of_models
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.plan.model import ModelSpec
from memsheet.readers.model import read_model
from memsheet.units import GIB, MIB

LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
TRAINED = f"{LLAMA} per_device_train_batch_size: 4 max_seq_length: 4096"
EYES = "Qwen/Qwen2.5-VL-7B-Instruct"
MEGATRON = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --num-experts 8 --moe-router-topk 2 --swiglu --bf16 "
    "--vocab-size 32000 --seq-length 4096 --micro-batch-size 4 --tensor-model-parallel-size 4 "
    "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights"
)
WHOLE = 8_030_261_248
PAGE = 2 * MIB


def died_of(size: int, said: str, *functions: str) -> Diagnosis:
    """A death of a request of ``size`` bytes in pages, as a message prints it."""
    pages = -(-size // PAGE) * PAGE
    printed = f"{pages / GIB:.2f} GiB" if pages >= GIB else f"{pages / MIB:.2f} MiB"
    message = modern(printed, "79.25 GiB", "0.10 GiB", "79.00 GiB", "78.00 GiB", "0.02 GiB")
    return diagnose_texts({"log": "\n".join((said, traced(*functions), message))})


def term_of(size: int, said: str, *functions: str) -> Term | None:
    return died_of(size, said, *functions).term


CASES = (
    ("swiglu", TRAINED, (4 * 4096, 14336), 2, "saved_activations"),
    ("forward", TRAINED, (4 * 4096, 14336), 2, "saved_activations"),
    ("forward", TRAINED.replace("_", "-"), (4 * 4096, 4096), 4, "saved_activations"),
    ("repeat_kv", TRAINED, (4 * 4096, 4096), 2, "saved_activations"),
    ("fused_moe", f"{MOE} cutoff_len: 8192", (8192, 8, 2048), 2, "saved_activations"),
    ("fused_moe", f"{MOE} cutoff_len: 32768", (32768, 8, 1536), 2, "saved_activations"),
    ("create_weights", f"Starting to load model {MOE}", (128, 1536, 2048), 2, "parameters"),
    ("fused_linear_cross_entropy_forward", f"{LLAMA} use_liger_kernel: true", (128256, 4096), 2, "gradients"),
    ("backward", LLAMA, (128256, 4096), 2, "gradients"),
    ("_multi_tensor_adamw", LLAMA, (128256, 4096), 4, "temporaries"),
    ("initialize_optimizer_states", f"{LLAMA} --nproc_per_node 8", (WHOLE // 8,), 4, "optimizer_states"),
    ("_configure_zero_optimizer", f"{LLAMA} world_size=4", (WHOLE // 4,), 4, "master_weights"),
    ("_unshard", LLAMA, (218_112_000,), 2, "unsharded_parameters"),
    ("_all_gather_base", LLAMA, (WHOLE,), 2, "unsharded_parameters"),
    ("swiglu", TRAINED.replace("meta-llama", "mirror"), (4 * 4096, 14336), 2, "saved_activations"),
    ("swiglu", TRAINED.replace(LLAMA, "/data/models/Llama-3.1-8B-bnb-4bit"), (4 * 4096, 14336), 2, "saved_activations"),
    ("swiglu", TRAINED.replace(LLAMA, "torchtune.models.llama3_1.llama3_1_8b"), (4 * 4096, 14336), 2, "saved_activations"),
    ("swiglu", TRAINED.replace(LLAMA, "/out/Llama-3.1-8B-Instruct-mcore/iter_100"), (4 * 4096, 14336), 2, "saved_activations"),
    ("swiglu", TRAINED.replace(LLAMA, "--model_name_or_path Llama-3.1-8B"), (4 * 4096, 14336), 2, "saved_activations"),
    ("swiglu", TRAINED.replace(LLAMA, "torchtune.models.llama3_1.lora_llama3_1_8b"), (4 * 4096, 14336), 2, "saved_activations"),
    ("cross_entropy", f"{LLAMA} batch_size 16 max_length 1000 loss_fct(shift_logits, shift_labels)", (16 * 999, 128_256), 4, "temporaries"),
    ("forward", "--model_name_or_path bert-base-uncased batch_size 64 max_length 512", (64 * 512, 30_522), 4, "temporaries"),
    ("output_layer", MEGATRON, (4 * 4096, 8000), 4, "temporaries"),
    ("initialize_optimizer_states", f"{LLAMA} world size 8", (WHOLE // 8,), 4, "optimizer_states"),
    ("create_weights", f"Starting to load model {MOE} tp_size=4", (128, 384, 2048), 2, "parameters"),
    ("create_weights", f"Starting to load model {MOE} tp_size=4 enable_expert_parallel", (32, 1536, 2048), 2, "parameters"),
    ("profile_run", f"vllm serve {LLAMA} --tensor-parallel-size 4 --max-num-batched-tokens 8192", (8192, 7168), 2, "saved_activations"),
    ("initialize_kv_cache", f"vllm serve {LLAMA}\nGPU KV cache size: 500,000 tokens", (2, 500_000, 8, 128), 2, "kv_cache"),
    ("initialize_kv_cache", f"vllm serve {LLAMA} -tp 4 tp_size=4\nGPU KV cache size: 500,000 tokens", (2, 500_000, 2, 128), 2, "kv_cache"),
    ("_create_buffers", f"sglang.launch {LLAMA} max_total_num_tokens=450000", (450_001, 8, 128), 2, "kv_cache"),
    ("_create_buffers", "sglang.launch deepseek-ai/DeepSeek-V3 max_total_num_tokens=450000", (450_001, 576), 2, "kv_cache"),
    ("compute_probs", f"vllm serve {LLAMA} max_num_seqs=256 num_speculative_tokens=5", (1280, 128_256), 4, "temporaries"),
    ("compute_probs", f"vllm serve {LLAMA} max_num_seqs=256 num_speculative_tokens=5", (1536, 128_256), 4, "temporaries"),
    ("_get_prompt_logprobs_dict", f"sglang.launch {LLAMA} chunked_prefill_size=12288", (12288, 128_256), 4, "temporaries"),
    ("forward", f"{EYES} image_grid_thw: tensor([[1, 128, 128], [1, 64, 64]])", (128**2 + 64**2, 1280), 2, "saved_activations"),
    ("forward", f"{EYES} video_grid_thw=[[64, 36, 64]]", (64 * 36 * 64, 3420), 2, "saved_activations"),
    ("eager_attention_forward", f"{EYES} image_grid_thw: tensor([[1, 128, 128]])", (1, 16, 128**2, 128**2), 2, "saved_activations"),
    ("permute", MEGATRON, (4 * 4096, 2, 4096), 2, "saved_activations"),
    ("vocab_parallel_cross_entropy", MEGATRON, (4 * 4096, 8000), 4, "temporaries"),
    ("vocab_parallel_cross_entropy", f"{MEGATRON} --context-parallel-size 2", (4 * 2048, 8000), 4, "temporaries"),
    ("swiglu", f"{TRAINED} sequence_parallel_size: 4", (4 * 1024, 14336), 2, "saved_activations"),
    ("cross_entropy", f"{LLAMA} labels.shape torch.Size([16, 448])", (16 * 448, 128_256), 4, "temporaries"),
    ("setup_buckets", 'deepspeed "reduce_bucket_size": 3e8', (300_000_000,), 2, "gradients"),
    ("setup_buckets", "deepspeed reduce_bucket_size=125829120", (125_829_120,), 4, "gradients"),
    ("setup_buckets", "/x/deepspeed/runtime/engine.py", (500_000_000,), 2, "gradients"),
)  # fmt: skip


@every("function, said, axes, width, component", CASES)
def test_a_tensor_is_found_by_its_own_size(
    function: str, said: str, axes: tuple[int, ...], width: int, component: str
) -> None:
    size = width
    for axis in axes:
        size *= axis
    term = term_of(size, said, "training_step", function)
    assert term is not None
    assert f"[{', '.join(map(str, axes))}] {'fp32' if width == 4 else 'bf16'}" in term.shape
    assert term.component == component


LINES = (
    ("logits = self.lm_head(hidden_states)", "return F.linear(input, self.weight, self.bias)", (8192, 128_256), 2),
    ("logits = logits / self.config.final_logit_softcapping", "logits = torch.tanh(logits)", (8192, 128_256), 2),
    ("loss = cross_entropy(", "logits.float(), labels, ignore_index=self.ignore_index", (4096, 128_256), 4),
    ("loss = self.loss_function(", "logits = logits.float()", (4096, 128_256), 4),
)  # fmt: skip


@pytest.mark.parametrize(("calls", "code", "axes", "width"), LINES)
def test_the_line_that_asked_says_how_wide_logits_are(
    calls: str, code: str, axes: tuple[int, int], width: int
) -> None:
    """As many bytes are twice the tokens in 16 bits: only the line tells them apart."""
    traceback = "\n".join(
        f'  File "/x/modeling_llama.py", line {n}, in forward\n    {line}'
        for n, line in ((8, calls), (9, code))
    )
    said = f"{LLAMA} bf16 micro_batch_size: 2 sequence_len: 4096"
    term = term_of(axes[0] * axes[1] * width, f"{said}\nTraceback (most recent call last):\n{traceback}")
    assert term is not None
    assert term.shape == f"[{axes[0]}, {axes[1]}] {'fp32' if width == 4 else 'bf16'}"


HEADS = "deberta-like encoder, batch_size: 16, max_len: 2048, 16 heads, bf16"
DRAWN = "pipe.to(torch.float16) /x/autoencoder_kl.py pipe(prompt, height=2048, width=1024)"
TGI = "text_generation_launcher --model-id meta-llama/Llama-3.1-8B --max-batch-prefill-tokens 12000"
SPOKEN = (
    ("openai/whisper-large-v3 per_device_train_batch_size=16 fp16=True", "attn_weights = torch.bmm(q, k.transpose(1, 2))", (16, 20, 1500, 1500), 2),
    ("google/vit-base-patch16-224 batch_size: 512", "attn_weights = torch.matmul(q, k)", (512, 12, 197, 197), 4),
    ("vit-large-patch16-384 batch_size: 256, amp: fp16", "attn_weights = torch.matmul(q, k)", (256, 16, 577, 577), 2),
    ("deit-small-patch16-512 batch_size: 256, fp16: false", "attn_weights = torch.matmul(q, k)", (256, 6, 1025, 1025), 4),
    (f"{LLAMA}, batch size 4, padded to 3000", "attn_weights = nn.functional.softmax(attn_weights, dtype=torch.float32)", (4, 32, 3000, 3000), 4),
    (f"{LLAMA}, batch size 4", "attn_weights = nn.functional.softmax(attn_weights, dtype=torch.float32)", (4, 32, 4096, 4096), 4),
    (HEADS, "scores = torch.matmul(q, k.transpose(-1, -2))", (16, 16, 2048, 2048), 2),
    (DRAWN, "attention_scores = torch.baddbmm(", (1, 256 * 128, 256 * 128), 2),
    ("BAAI/bge-m3 max_seq_length = 4000, batch_size=32", "hidden_states = self.intermediate_act_fn(hidden_states)", (32 * 4000, 4096), 4),
    (TGI, "gate_up_states = self.gate_up_proj(hidden_states)", (12_000, 28_672), 2),
    ("openai/whisper-large-v3 batch_size=64 fp16=True", "hidden_states = self.fc1(hidden_states)", (64 * 1500, 5120), 2),
    ("google/vit-base-patch16-224 batch_size: 512", "hidden_states = self.intermediate_act_fn(hidden_states)", (512 * 197, 3072), 4),
    ("torch.randn(8, 3, 512, 512) Conv2d(3, 48, 3), Conv2d(48, 96, 3)", "return F.conv2d(", (8, 96, 256, 256), 4),
    (f"{LLAMA} labels: [16, 448]", "loss = loss_fct(lm_logits.view(-1, n), labels)", (16 * 448, 128_256), 4),
    ("x.shape: torch.Size([16, 3, 1024, 1024]) amp: bf16 Conv2d(3, 32)", "return F.relu(x)", (16, 32, 1024, 1024), 2),
)  # fmt: skip


@pytest.mark.parametrize(("said", "code", "axes", "width"), SPOKEN)
def test_lengths_that_a_model_or_a_text_fixes_find_the_tensor(
    said: str, code: str, axes: tuple[int, ...], width: int
) -> None:
    """Positions of sound and pictures, heads and lengths as people write them, and a line of code."""
    size = width
    for axis in axes:
        size *= axis
    traceback = f'Traceback (most recent call last):\n  File "/x/model.py", line 9, in forward\n    {code}'
    term = term_of(size, f"{said}\n{traceback}")
    assert term is not None
    whole = axes if len(axes) != 3 else (1, *axes)
    assert term.shape == f"[{', '.join(map(str, whole))}] {'fp32' if width == 4 else 'bf16'}"


def test_an_activation_is_no_attention_score_of_the_same_size() -> None:
    """32 × 8,192 × 4,096 and 16 × 8,192² are as large: the function that asked tells them apart."""
    said = "BAAI/bge-m3 max_seq_length = 8192, batch_size=32"
    file = "/x/transformers/activations.py"
    frame = f'  File "{file}", line 69, in forward\n    return self.act(input)'
    code = f"Traceback (most recent call last):\n{frame}"
    term = term_of(32 * 8192 * 4096 * 4, f"{said}\n{code}")
    assert term is not None
    assert (term.path, term.shape) == ("mlp", "[262144, 4096] fp32")


@pytest.mark.parametrize(
    ("said", "rows"),
    [
        ("> padded vocab (size: 32000) with 16896 dummy tokens (new size: 48896)", 12_224),
        ("--make-vocab-size-divisible-by 1000", 8_000),
        ("", 8_064),
    ],
)
def test_a_vocabulary_is_padded_for_its_ranks(said: str, rows: int) -> None:
    """32,000 rows over 4 ranks are a multiple of 4 × 128 as they are not; 32,256 are."""
    megatron = MEGATRON.replace("--vocab-size 32000", "--vocab-size 31999")
    term = term_of(4 * 4096 * rows * 4, f"{megatron} {said}", "vocab_parallel_cross_entropy")
    assert term is not None
    assert term.shape == f"[16384, {rows}] fp32"


def test_a_rank_makes_its_share_alone_of_what_is_cut() -> None:
    said = f"pretrain_recipe megatron/core {LLAMA} tensor_model_parallel_size = 2"
    said += " micro_batch_size = 2 seq_length = 8192"
    term = term_of(2 * 8192 * 14_336 * 2, said, "forward")
    assert term is not None
    assert term.shape == "[16384, 14336] bf16"
    assert "gate_up" in term.words


def test_a_weight_and_an_activation_of_one_size_are_both_told_where_nothing_says_which() -> None:
    said = f"{LLAMA} bf16 max_length: 4096"
    either = term_of(4096 * 14336 * 2, said)
    assert either is not None
    assert [each.component for each in (either, *either.others)] == ["saved_activations", "parameters"]
    assert not either.exact
    cures = died_of(4096 * 14336 * 2, said).cures
    assert not any("batch" in cure.change and cure.helps == "no" for cure in cures)
    made = term_of(4096 * 14336 * 2, said, "swiglu")
    assert made is not None
    assert (made.component, made.others) == ("saved_activations", ())


def test_two_weights_of_one_shape_are_both_named() -> None:
    """Rows of 16,384 over 8 ranks are 2,048, as many as the projections of attention have."""
    said = "google/gemma-2b fsdp: full_shard num_processes: 8"
    term = term_of(2048 * 2048 * 4, said, "_load_state_dict_into_meta_model")
    assert term is not None
    assert "q_proj" in term.words
    assert "gate_proj" in term.words


def test_keys_that_heads_share_are_as_wide_as_one() -> None:
    """8 × 8,192 tokens × 64 × 4 bytes are 2,048² × 4."""
    said = "deepseek-ai/DeepSeek-V2-Lite bf16 micro_batch_size: 8 sequence_len: 8192"
    term = term_of(8 * 8192 * 64 * 4, said)
    assert term is not None
    assert "[65536, 64] fp32" in [each.shape for each in (term, *term.others)]


def test_a_model_that_scans_has_no_tensor_for_certain_where_nothing_says_who_asked() -> None:
    said = "tiiuae/Falcon-H1-3B-Base bf16 micro_batch_size: 2 sequence_len: 4096"
    term = term_of(2 * 4096 * 6144 * 2, said)
    assert term is not None
    assert not term.exact


def test_a_prompts_cache_is_its_printed_shape_wide() -> None:
    traceback = traced("update", module="transformers/cache_utils.py")
    term = term_of(16 * 8192 * 8 * 128 * 2, f"{LLAMA} input_ids torch.Size([16, 8192])\n{traceback}")
    assert term is not None
    assert (term.component, term.shape) == ("kv_cache", "[131072, 8, 128] bf16")


def test_a_size_of_logits_is_none_where_experts_asked() -> None:
    term = term_of(4 * 4096 * 32000 * 4, MEGATRON.replace("parallel-size 4", "parallel-size 1"), "permute")
    assert term is None or "32000" not in term.shape


def test_a_gradient_buffer_is_one_share_of_what_flags_describe() -> None:
    dense = " ".join(re.sub(r"--num-experts 8 --moe-router-topk 2", "", MEGATRON).split())
    cut = 2 * 32000 * 4096 + 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    elements = cut // 4 + 65 * 4096
    traceback = traced("__init__", module="megatron/core/distributed/param_and_grad_buffer.py")
    term = term_of(elements * 4, f"{dense}\n{traceback}")
    assert term is not None
    assert term.shape == f"[{elements}] fp32"


def test_a_neighbour_of_a_server_is_told_before_its_share() -> None:
    """As the server left room for it, and the other took it; where a job shares the card both are its own."""
    message = modern(
        "1.91 GiB",
        "93.10 GiB",
        "0.90 GiB",
        "69.89 GiB",
        "69.29 GiB",
        "51.20 MiB",
        others=((40012, "22.31 GiB"),),
    )
    functions = traced("initialize_kv_cache", module="site-packages/vllm/v1/worker/gpu_model_runner.py")
    alone = diagnose_texts({"log": f"vllm serve {LLAMA}\n{functions}{message}"})
    assert alone.cause is Cause.OTHER_PROCESS
    assert alone.cures[0].change == "end or move the other process 40012"
    shared = diagnose_texts(
        {"log": f"actor_rollout_ref.hybrid_engine=True vllm serve {LLAMA}\n{functions}{message}"}
    )
    assert shared.cause is Cause.ENGINE_OVERCOMMIT


def test_a_prefix_that_names_its_rank_is_no_part_of_a_line() -> None:
    prefix = "(VllmWorker rank=2 pid=4412) ERROR 08-11 09:20:58 [multiproc_executor.py:559] "
    assert (
        without_prefixes(f"{prefix}Traceback (most recent call last):")
        == "Traceback (most recent call last):"
    )


def test_a_size_that_is_none_is_not_named() -> None:
    rng = random.Random(7)
    sizes = [int(2 ** rng.uniform(25, 35)) for _ in range(40)]
    asked = [(function, said) for function, said, *_ in CASES]
    terms = [term_of(size, said, function) for size in sizes for function, said in rng.sample(asked, 3)]
    assert sum(term is not None and term.exact for term in terms) <= len(terms) // 20


def test_weights_outside_of_layers_and_all_layers_are_all_weights() -> None:
    whole = {shape.words: shape.elements for shape in units_of_models(LLAMA)}
    spec = _spec_of(LLAMA)
    assert whole["all weights"] == WHOLE
    assert whole["all weights"] == whole[OUTSIDE] + spec.layers * whole["a layer's weights"]


def _spec_of(name: str) -> ModelSpec:
    entry = find_model(name)
    assert entry is not None
    return read_model(entry["config"], catalog=find_model)


def test_half_the_batch_helps_a_layer_and_no_weight() -> None:
    layer = died_of(4 * 4096 * 14336 * 2, TRAINED, "training_step", "swiglu")
    said = f"{LLAMA} max_seq_length: 3000 use_liger_kernel: true"
    weight = died_of(128256 * 4096 * 2, said, "fused_linear_cross_entropy_forward")
    assert any("half the micro-batch" in cure.change and cure.saves_bytes for cure in layer.cures)
    assert not any(
        cure.helps == YES or (cure.saves_bytes and "half the" in cure.change) for cure in weight.cures
    )


@pytest.mark.parametrize("code", ["return F.conv2d(", "out = model(x)"])
def test_a_feature_map_is_told_where_a_convolution_asked_for_one(code: str) -> None:
    said = "x: torch.Size([64, 3, 256, 256]) DoubleConv(3, 64)"
    traceback = f'Traceback (most recent call last):\n  File "/x/unet.py", line 9, in forward\n    {code}'
    whole = term_of(64 * 64 * 256 * 256 * 4, f"{said}\n{traceback}")
    other = term_of(64 * 72 * 256 * 256 * 4, f"{said}\n{traceback}")
    assert (whole is not None and whole.path == "features", other) == (code != "out = model(x)", None)


@pytest.mark.parametrize("loaded", ["torch_dtype=torch.bfloat16", ""])
@pytest.mark.parametrize("rows", [4096, 14336])
def test_a_weight_in_another_dtype_that_is_as_large_leaves_a_tensor_open(loaded: str, rows: int) -> None:
    """Nothing says what asked: a weight's gradient, copy or state may be wider than the weight."""
    said = f"training {LLAMA} {loaded} per_device_train_batch_size=2 max_length=4096"
    term = term_of(rows * 4096 * 4, said)  # as many bytes as 8,192 tokens in 16 bits
    assert term is not None
    assert not term.exact
    shapes = {(each.component, each.shape) for each in (term, *term.others)}
    assert ("parameters", f"[{rows}, 4096] fp32") in shapes
    assert ("saved_activations", f"[8192, {rows}] bf16") in shapes
