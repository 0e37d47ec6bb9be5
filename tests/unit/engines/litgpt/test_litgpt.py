"""litgpt's finetuning on one GPU and on several.

The bytes of ``TRACED`` are what litgpt's own model code (Lightning-AI/litgpt 0f021f3a, lit_gpt/lora.py,
adapter.py, adapter_v2.py) allocates at the high-water mark of backward, recorded on fake CUDA tensors under
torch 2.13: forward through Fabric's cast to fp32, its chunked cross-entropy, backward, AdamW with foreach,
the second of two steps. Its four-bit layers were replaced by a copy of bitsandbytes 0.41.0's MatMul4Bit,
which needs a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.engines.litgpt.layers.built import litgpt_spec
from memsheet.errors import InputError
from memsheet.formulas.states.held import held_tensors
from memsheet.plan.model import ModelSpec
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

SIZES = {
    "hidden_size": 1024, "num_hidden_layers": 5, "num_attention_heads": 16, "vocab_size": 8000, "intermediate_size": 4096,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "intermediate_size": 2816},
    "phi": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.25, "use_parallel_residual": True},
    "falcon": {
        "model_type": "falcon",
        "num_kv_heads": 4,
        "multi_query": True,
        "new_decoder_architecture": True,
        "bias": False,
    },
    "falcon_mqa": {
        "model_type": "falcon",
        "num_kv_heads": 1,
        "multi_query": True,
        "new_decoder_architecture": True,
        "bias": False,
    },
}
LORA = {"adapter.rank": 8, "adapter.dropout": 0.05, "adapter.targets": ["q_proj", "v_proj"]}
EVERY_HEAD = {**LORA, "adapter.targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
MLP = {**LORA, "adapter.targets": ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]}
V1, V2 = {"adapter.kind": "llama-adapter"}, {"adapter.kind": "llama-adapter-v2"}
FULL = {"loss": "plain"}  # the script for all weights
NF4 = {"quantization.weights": "nf4", "quantization.double_quant": False}
BASE: dict[str, Any] = {
    "task": "train", "engine": "litgpt", "seq_len": 300, "loss": "chunked", "attention": "flash", "optimizer.name": "adamw",
    "optimizer.implementation": "foreach",
}  # fmt: skip

TRACED: list[tuple[str, int, dict[str, Any], int]] = [
    ("llama", 1, LORA, 256_489_388), ("llama", 2, {**LORA, **NF4}, 288_595_140), ("phi", 1, LORA, 229_171_756),
    ("falcon", 2, LORA, 265_642_444), ("falcon_mqa", 1, {**LORA, **NF4}, 150_756_388), ("gpt_neox", 1, EVERY_HEAD, 228_560_556),
    ("llama", 1, MLP, 281_214_188), ("gpt_neox", 1, V1, 202_400_004), ("llama", 2, {**V1, **NF4}, 204_029_468),
    ("phi", 1, V2, 255_941_804), ("llama", 2, {**V2, **NF4}, 372_341_092), ("llama", 1, FULL, 655_337_164), ("phi", 3, FULL, 751_882_500),
]  # fmt: skip


def _model(family: str, **over: Any) -> ModelSpec:
    return read_hf_config({**SIZES, **FAMILIES[family], **over}, name=family)


def _sheet(family: str, over: dict[str, Any] | None = None, **options: Any) -> Sheet:
    spec = _model(family, **(over or {}))
    return account_rank(spec, resolve_request({**BASE, **options}, spec).plan)


def _refused(family: str, over: dict[str, Any] | None = None, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        _sheet(family, over, **options)
    return str(error.value)


@pytest.mark.parametrize(("family", "microbatch", "options", "traced"), TRACED)
def test_backward_holds_what_the_real_code_allocates(
    family: str, microbatch: int, options: dict[str, Any], traced: int
) -> None:
    found = _sheet(family, microbatch=microbatch, **options).at(Instant.BACKWARD).value
    assert abs(found - traced) < 0.002 * traced


@pytest.mark.parametrize(
    ("family", "microbatch", "options", "traced"), [case for case in TRACED if "adapter.rank" in case[2]]
)
def test_lora_is_the_real_code_to_three_parts_in_ten_thousand(
    family: str, microbatch: int, options: dict[str, Any], traced: int
) -> None:
    found = _sheet(family, microbatch=microbatch, **options).at(Instant.BACKWARD).value
    assert abs(found - traced) < 3e-4 * traced


PUBLISHED_COUNTS: list[tuple[str, dict[str, int], dict[str, Any], int]] = [
    ("phi", {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "intermediate_size": 8192}, LORA, 1_572_864),
    ("llama", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}, LORA, 4_194_304),
    ("llama", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}, V1, 1_229_760),
    ("llama", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}, V2,
     4_279_744),
    ("gpt_neox", {"hidden_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 32, "intermediate_size": 16384, "vocab_size": 50688},
     V2, 2_125_248),
    ("falcon", {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8, "intermediate_size": 32768},
     LORA, 12_042_240),
]  # fmt: skip


@pytest.mark.parametrize(("family", "sizes", "options", "count"), PUBLISHED_COUNTS)
def test_trainable_parameters_are_those_that_litgpt_prints(
    family: str, sizes: dict[str, int], options: dict[str, Any], count: int
) -> None:
    """The prompts themselves require gradients and never get one, so that they are counted with what does not
    train here.
    """
    spec = _model(family, **sizes)
    plan = resolve_request({**BASE, **options}, spec).plan
    tensors = list(held_tensors(litgpt_spec(spec, plan), plan))
    assert sum(h.times * h.elements for h in tensors if h.trains or "adapter_wte" in h.path) == count


def test_four_bit_layers_keep_their_inputs() -> None:
    """Both norms' outputs, merged heads and the feed-forward's product of every layer; of the first not the
    norm's, whose input has no gradient; and what the output layer takes.
    """
    plain, low = (_saved(_sheet("llama", **LORA, **more)) for more in ({}, NF4))
    unit = 2 * 300 * 1024
    assert low - plain == unit * (5 * (3 + 2816 / 1024) - 1 + 1)


def _saved(sheet: Sheet) -> int:
    """What layers and the output layer keep, without what the loss makes of the logits."""
    items = [
        item
        for item in sheet.items
        if item.component is Component.SAVED_ACTIVATIONS and item.path != "loss/log_softmax"
    ]
    return int(sum(item.at[Instant.BACKWARD].value for item in items if Instant.BACKWARD in item.at))


def test_activations_grow_by_the_same_bytes_with_every_sequence() -> None:
    peaks = [_sheet("llama", microbatch=n, **LORA).peak.value for n in (2, 4, 8)]
    assert peaks[2] - peaks[1] == 2 * (peaks[1] - peaks[0])


def test_layers_before_the_first_prompts_keep_nothing() -> None:
    peaks = [_sheet("llama", **{**V1, "adapter.start_layer": start}).peak.value for start in (1, 2, 3)]
    assert peaks[0] - peaks[1] == pytest.approx(peaks[1] - peaks[2], rel=1e-3)
    assert peaks[0] > peaks[1]


def test_logits_of_all_chunks_are_there_in_fp32_until_the_step_is_over() -> None:
    sheet = _sheet("llama", **LORA)
    named = next(item for item in sheet.items if item.path == "lm_head/logits")
    assert {
        named.at[instant].value for instant in (Instant.LOSS, Instant.BACKWARD, Instant.OPTIMIZER_STEP)
    } == {4 * 300 * 8000}
    assert Instant.FORWARD not in named.at


def test_a_loss_in_one_piece_takes_more() -> None:
    assert _sheet("llama", loss="plain", **LORA).peak.value > _sheet("llama", **LORA).peak.value


def test_a_tied_model_gets_a_head_of_its_own() -> None:
    tied = _sheet("llama", {"tie_word_embeddings": True}, **LORA)
    assert tied.peak == _sheet("llama", **LORA).peak


def test_every_linear_layer_is_in_four_bits_the_head_too() -> None:
    sheet = _sheet("llama", **LORA, **NF4)
    head = next(
        item
        for item in sheet.items
        if item.component is Component.PARAMETERS and item.path.startswith("lm_head")
    )
    assert head.at[Instant.LOAD].value == 8000 * 1024 * (0.5 + 4 / 64)


def test_embeddings_and_norms_are_skipped_by_any_name() -> None:
    named = _sheet("gpt_neox", **LORA, **NF4, **{"quantization.skip": ["embed_tokens", "norm"]})
    assert named.peak == _sheet("gpt_neox", **LORA, **NF4).peak


def test_paged_states_of_small_matrices_are_in_fp32_on_the_card() -> None:
    paged = _sheet(
        "llama",
        **LORA,
        **NF4,
        **{"optimizer.name": "paged-adamw", "optimizer.implementation": "bnb", "precision.moments": "fp32"},
    )
    trained = 5 * (16 * 1024 + 2048 * 8)
    assert paged.of(Component.OPTIMIZER_STATES, instant=Instant.OPTIMIZER_STEP).value == 8 * trained


def test_queries_and_values_are_the_default_whatever_a_family_calls_its_layers() -> None:
    without = {key: value for key, value in LORA.items() if key != "adapter.targets"}
    assert _sheet("gpt_neox", **without).peak == _sheet("gpt_neox", **LORA).peak


SEVERAL: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({}, {"mesh.dp_shard": 8}, 257_240_868),
    ({"vocab_size": 40_000, "num_hidden_layers": 1}, {"mesh.dp_shard": 8, "microbatch": 1, "seq_len": 8}, 565_525_388),
    ({}, {"mesh.dp_shard": 7, "microbatch": 1, "seq_len": 256, "recompute.mode": "none"}, 241_850_188),
    ({}, {"mesh.dp_shard": 8, "global_batch": 32}, 378_762_020),
    ({}, {"mesh.dp_shard": 8, **LORA, "loss": "chunked"}, 194_220_324),
]  # fmt: skip


@pytest.mark.parametrize(("over", "options", "traced"), SEVERAL)
def test_a_rank_s_backward_holds_what_the_real_code_allocates(
    over: dict[str, Any], options: dict[str, Any], traced: int
) -> None:
    """Blocks of the same code under FullyShardedDataParallel, and with LoRA under fully_shard, as its scripts
    start them: recomputed, and reduced with a step's last micro-batch alone.
    """
    sizes = {"num_hidden_layers": 4, "intermediate_size": 2816, "num_key_value_heads": 4, **over}
    found = _sheet("llama", sizes, **{"microbatch": 2, "seq_len": 512, **FULL, **options})
    assert found.at(Instant.BACKWARD).value == pytest.approx(traced, rel=3e-5)


def test_gradients_wait_whole_for_a_step_s_last_micro_batch() -> None:
    """As they do unasked; a plan may say that they do not."""
    several = {"mesh.dp_shard": 8, "microbatch": 1, "global_batch": 16, **FULL}
    own, last, every = (
        _sheet("llama", **several, **more)
        for more in ({}, {"gradient_sync": "last"}, {"gradient_sync": "every"})
    )
    assert own.peak == last.peak
    assert own.peak.value > every.peak.value


def test_one_gpu_keeps_what_its_layers_make() -> None:
    assert _sheet("llama", **FULL).of(Component.UNSHARDED_PARAMETERS, instant=Instant.BACKWARD).value == 0


SEVERAL_REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {**LORA, **NF4}, "one GPU alone"),
    ({}, {**LORA, "engine_version": "0.5.10"}, "part of every flat parameter"),
    ({}, V1, "llama-adapter"),
    ({}, {**FULL, "compile": True}, "compile"),
    ({"model_type": "gemma", "head_dim": 64}, LORA, "engine fsdp2"),
    ({"model_type": "gemma", "head_dim": 64}, FULL, "engine fsdp1"),
]


@pytest.mark.parametrize(("over", "options", "why"), SEVERAL_REFUSED)
def test_what_it_does_not_do_on_several_gpus_is_refused_by_name(
    over: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError) as error:
        _sheet("llama", over, **{"microbatch": 1, "mesh.dp_shard": 8, **options})
    assert why in " ".join(f"{one} {one.hint}" for one in error.value.problems)


REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama", {"model_type": "qwen3", "head_dim": 64, "num_key_value_heads": 16}, LORA, "norms, caps"),
    ("llama", {"model_type": "qwen2", "num_key_value_heads": 16}, LORA, "some linear layers have biases"),
    ("llama", {"head_dim": 128}, LORA, "heads of 128"),
    ("llama", {"hidden_act": "relu"}, LORA, "another function"),
    ("llama", {"model_type": "gemma", "head_dim": 64}, LORA, "scaled"),
    ("llama", {}, {**LORA, "dropout": 0.1}, "does not exist in litgpt"),
    ("llama", {}, {**LORA, "adapter.targets": ["q_proj", "up_proj"]}, "on all of"),
    ("llama", {}, {**V1, "adapter.start_layer": 5}, "leaves none of 5 layers"),
    ("llama", {}, {**LORA, "quantization.weights": "fp4"}, "not modelled for litgpt"),
    ("llama", {}, {}, "trains adapters"),
    ("llama", {}, {**LORA, "recompute.mode": "full"}, "not modelled for litgpt"),
    ("llama", {}, {"precision.name": "bf16-autocast"}, "is not how litgpt trains"),
]


@pytest.mark.parametrize(("family", "over", "options", "why"), REFUSALS)
def test_what_litgpt_has_no_model_or_script_for_is_refused_by_name(
    family: str, over: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    assert why in _refused(family, over, **options)
