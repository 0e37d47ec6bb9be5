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
