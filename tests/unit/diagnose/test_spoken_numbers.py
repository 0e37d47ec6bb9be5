"""Lengths, batches, cards and models as people write of them, and not as a flag or a file has them."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

FULL_MASK = "    causal_mask = torch.full((sequence_length, target_length), fill_value=min_dtype)"
LOGITS = "    loss = F.cross_entropy(logits.float(), labels)"


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def asked(size: str) -> str:
    return modern(size, "39.39 GiB", "1.17 GiB", "38.22 GiB", "37.60 GiB", "122.88 MiB")


@pytest.mark.parametrize(
    ("said", "line", "size", "shape"),
    [
        ("a sequence of 65,536 tokens", FULL_MASK, "8.00 GiB", "[1, 1, 65536, 65536] bf16"),
        ("a 65536-token prompt", FULL_MASK, "8.00 GiB", "[1, 1, 65536, 65536] bf16"),
        ("one picture => 65536 patches", FULL_MASK, "8.00 GiB", "[1, 1, 65536, 65536] bf16"),
        ("tokens in batch 31,040 | llama-3.1-8b", LOGITS, "14.83 GiB", "[31040, 128256] fp32"),
        ("llama-3.1-8b, 4 sequences per batch, max len 7,760", LOGITS, "14.83 GiB", "[31040, 128256] fp32"),
        ("llama-3.1-8b, batch of 4, max len 7,760", LOGITS, "14.83 GiB", "[31040, 128256] fp32"),
        ("llama-3.1-8b, mbs 4, input length 7760", LOGITS, "14.83 GiB", "[31040, 128256] fp32"),
        ("--micro-batch 4 --seq 7760 --model llama-3.1-8b", LOGITS, "14.83 GiB", "[31040, 128256] fp32"),
        ("gemma2/9B, batch 1, seq 1024", LOGITS, "1000.00 MiB", "[1024, 256000] fp32"),
    ],
)
def test_a_tensor_is_named_by_what_people_write(said: str, line: str, size: str, shape: str) -> None:
    term = found_in(said, line, asked(size)).term
    assert term is not None
    assert (term.shape, term.exact) == (shape, True)


@pytest.mark.parametrize("said", ["65,536 tokens/s", "65536 tokens per second", "65536 tokens seen"])
def test_a_rate_is_no_length(said: str) -> None:
    term = found_in(said, LOGITS, "llama-3.1-8b", asked("31.31 GiB")).term
    assert term is None or not term.exact


def test_scores_of_a_model_whose_size_is_a_word() -> None:
    line = "    attn_weights = torch.bmm(query_states, key_states.transpose(1, 2))"
    term = found_in("Whisper large-v3 fine-tune, bs 16 fp32, eager", line, asked("2.68 GiB")).term
    assert term is not None
    assert term.shape == "[16, 20, 1500, 1500] fp32"


@pytest.mark.parametrize("cards", ["8 x V100-32GB", "8x A100", "8 GPUs"])
def test_ranks_are_the_cards_that_are_named(cards: str) -> None:
    line = traced("__init__", module="site-packages/deepspeed/runtime/zero/stage_1_and_2.py")
    flat = "    self.single_partition_of_fp32_groups.append(weights.to(self.device).clone().float().detach())"
    term = found_in(f"llama-2-7b, {cards}, ZeRO stage 2", line, flat, asked("3.14 GiB")).term
    assert term is not None
    assert term.shape == "[842301952] fp32"


def test_code_with_a_comment_is_the_same_code() -> None:
    for comment in ("", "      # epoch loss"):
        found = found_in(f"    total_loss += loss{comment}", traced("backward"), FULL_CARD)
        assert found.cause is Cause.LEAK


def test_a_sharded_model_that_is_gathered_for_its_checkpoint_is_saved() -> None:
    hooks = traced(
        "_full_pre_state_dict_hook", module="site-packages/torch/distributed/fsdp/_state_dict_utils.py"
    )
    assert found_in("step 12 loss 1.21", hooks, FULL_CARD).cause is Cause.REGIME_CHANGE


def test_a_line_that_is_cut_behind_its_call_makes_scores_all_the_same() -> None:
    line = "    scores = torch.matmul("
    term = found_in("t5-large, input length 1024, batch_size 16", line, asked("1.00 GiB")).term
    assert term is not None
    assert term.shape == "[16, 16, 1024, 1024] fp32"


def test_a_cache_that_is_made_ahead_has_all_tokens_and_keys_alone() -> None:
    said = "Llama-3.1-8B-Instruct bf16, batch 64, prompts 4096 tokens and max_new_tokens=4096"
    line = "    new_layer_value_cache = torch.zeros(cache_shape, dtype=self.dtype, device=layer_device)"
    frame = '  File "site-packages/transformers/cache_utils.py", line 1225, in __init__'
    term = found_in(said, "Traceback (most recent call last):", frame, line, asked("1.00 GiB")).term
    assert term is not None
    assert (term.component, term.shape) == ("kv_cache", "[524288, 8, 128] bf16")


REFUSED = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize(
    ("listed", "cause"),
    [
        (("30122, python serve.py, 30112 MiB", "30977, python gen.py, 10211 MiB"), Cause.OTHER_PROCESS),
        (("30122, python serve.py, 3011 MiB", "30977, python gen.py, 37211 MiB"), Cause.UNKNOWN),
        (("30122, python serve.py, 30112 MiB", "30977, python other.py, 10211 MiB"), Cause.UNKNOWN),
    ],
)
def test_a_refused_handle_is_a_neighbour_s_where_a_list_names_both(
    listed: tuple[str, ...], cause: Cause
) -> None:
    found = found_in('  File "gen.py", line 19, in <module>', REFUSED, *listed)
    assert found.cause is cause


def test_pieces_of_a_prompt_are_a_server_s_whatever_its_folder() -> None:
    said = "sglang, --chunked-prefill-size 8192 --mem-fraction-static 0.92; Qwen3-8B"
    line = "    return torch.nn.functional.log_softmax(last_logits, dim=-1)"
    found = found_in(said, traced("forward"), line, asked("4.64 GiB"))
    assert all("micro-batch" not in cure.change for cure in found.cures if cure.helps == "yes")


HEAD_GRADIENT = modern("1.25 GiB", "79.15 GiB", "931.84 MiB", "78.24 GiB", "77.54 GiB", "153.60 MiB")


@pytest.mark.parametrize(
    "named",
    [
        "mistralai/Mistral-Small-24B-Instruct-2501",
        "somebody/Mistral-Small-3.1-24B-chat-sft",
    ],
)
def test_a_tuned_models_weights_have_the_shapes_of_what_it_is_tuned_from(named: str) -> None:
    term = found_in(named, "max_seq_length 4000, batch 1", traced("_engine_run_backward"), HEAD_GRADIENT).term
    assert term is not None
    assert (term.component, term.shape) == ("gradients", "[131072, 5120] bf16")


@pytest.mark.parametrize("size", ["8B", "70B"])
def test_a_model_without_its_version_is_any_of_them(size: str) -> None:
    rows = {"8B": ("1.96 GiB", "[128256, 4096] fp32"), "70B": ("3.91 GiB", "[128256, 8192] fp32")}
    asked_for, shape = rows[size]
    term = found_in(f"llama {size} in fp32", traced("load_model"), asked(asked_for)).term
    assert term is not None
    assert term.shape == shape


@pytest.mark.parametrize(
    ("said", "loads"),
    [
        ("llama-3-8b in fp16, dies while loading on my card", True),
        ("OOM on load of the weights", True),
        ("llama-3-8bをfp16で読み込み中に:", True),
        ("beim Laden von llama-3-8b:", True),
        ("while loading it was fine, but at step 3:", False),
        ("llama-3-8b, batch 4", False),
    ],
)
def test_people_say_that_a_model_is_loaded(said: str, loads: bool) -> None:
    found = found_in(said, asked("1.96 GiB"))
    assert any("smaller batch" in cure.change and cure.helps == "no" for cure in found.cures) is loads
