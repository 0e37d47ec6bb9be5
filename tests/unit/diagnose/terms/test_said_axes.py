"""Tensors by the axes that people write; a vocabulary that nobody names is never certain."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import modern

from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_for(asked: str, said: str, line: str = "", *, free: str = "0.21 GiB") -> Diagnosis:
    trace = f'  File "model.py", line 7, in forward\n    {line}\n' if line else ""
    message = modern(asked, "79.10 GiB", free, "78.90 GiB", "75.20 GiB", "96.00 MiB")
    return diagnose_texts({"log": f"{said}\n{trace}{message}"})


def named(asked: str, said: str, line: str = "") -> tuple[str, bool]:
    term = found_for(asked, said, line).term
    return ("", False) if term is None else (term.shape, term.exact)


BERT = "bert-large-uncased-whole-word-masking --max_seq_length 512 --per_gpu_train_batch_size 12"


@pytest.mark.parametrize(
    "line",
    [
        "attention_scores = attention_scores / math.sqrt(self.attention_head_size)",
        "attention_scores += attention_mask_of(attention_scores)",
        "attention_probs = self.dropout(attention_probs)",
        "scores = scores.masked_fill(mask == 0, -1e9)",
        "att = att.float()",
    ],
)
def test_a_line_that_makes_scores_by_its_own_names(line: str) -> None:
    assert named("192.00 MiB", BERT, line) == ("[12, 16, 512, 512] fp32", True)


@pytest.mark.parametrize("size", ["192.00 MiB", "1.00 GiB", "250.00 MiB", "125.00 MiB", "400.00 MiB"])
@pytest.mark.parametrize(
    "said", ["sequences of 512 tokens, batch 12", "length 1024, batch 4", "max_length 2000"]
)
def test_a_width_like_any_other_is_no_vocabulary(size: str, said: str) -> None:
    """49,152 × 1,024 × 4 bytes, 32,768 × 8,192, 32,000 × 2,048, 32,000 × 1,024, 51,200 × 2,048."""
    assert named(size, f"my own transformer, {said}") == ("", False)


def test_a_vocabulary_that_nobody_names_is_never_certain() -> None:
    found = found_for("5.87 GiB", "packed to 12288 tokens", "loss = F.cross_entropy(logits.float(), y)")
    assert found.term is None or not found.term.exact
    said = found_for(
        "5.87 GiB", "packed to 12288 tokens, vocab of 128256", "loss = F.cross_entropy(logits.float(), y)"
    )
    assert said.term is not None
    assert (said.term.shape, said.term.exact) == ("[12288, 128256] fp32", True)


@pytest.mark.parametrize(
    "said",
    [
        "google/flan-t5-xl, max_source_length = 2048, batch size per device = 4",
        "t5-3b, B = 4, T = 2048",
        "t5-3b, 4 x 2048",
        "32 heads, batch 4 x 2048.",
        "32 heads, bs 4, len 2048",
        "32 heads, batch_size=4, my block is 2048",
        "32 heads, batch_size=4, source 2048",
        "32 heads, batch_size=4, 2048 ctx",
    ],
)
def test_lengths_and_batches_as_people_write_them(said: str) -> None:
    assert named("2.00 GiB", said, "attn_weights = softmax(scores.float())") == (
        "[4, 32, 2048, 2048] fp32",
        True,
    )


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("no fp16 because loss was strange", True),
        ("instead of bf16", True),
        ("fp16 off", True),
        ("fp16", False),
    ],
)
def test_bits_that_a_text_denies(said: str, *, raised: bool) -> None:
    shape, _ = named(
        "768.00 MiB", f"gpt2, batch 16, block size 1024, {said}", "attn_weights = torch.matmul(query, key)"
    )
    assert (shape == "[16, 12, 1024, 1024] fp32") is raised


@pytest.mark.parametrize(
    "before",
    ["2023-05-18 22:41:07 | ERROR | trainer | ", "2023-05-18 22:41:07.123 | ERROR    | pkg.mod:run:12 - "],
)
def test_columns_of_a_logger_stand_before_a_traceback(before: str) -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/x/t5/modeling_t5.py", line 561, in forward',
        "    attn_weights = nn.functional.softmax(scores.float(), dim=-1)",
        modern("2.00 GiB", "31.74 GiB", "1.58 GiB", "29.30 GiB", "28.93 GiB", "215.00 MiB"),
    )
    text = "\n".join(before + each for each in ("t5-3b batch size 4 max_source_length 2048", *lines))
    term = diagnose_texts({"log": text}).term
    assert term is not None
    assert term.shape == "[4, 32, 2048, 2048] fp32"


@pytest.mark.parametrize(("flag", "first"), [("", "bf16"), ("--no-half", "fp32"), ("--no-half-vae", "bf16")])
def test_pictures_are_made_in_16_bits_unless_told_otherwise(flag: str, first: str) -> None:
    said = f"stable-diffusion-webui/ldm/modules {flag} 1024x1024"
    term = found_for("8.00 GiB", said, "sim = einsum('b i d, b j d -> b i j', q, k) * self.scale").term
    assert term is not None
    assert term.shape.endswith(first)
    assert len(term.others) == 1


EVALUATES = 'TrainingArguments(per_device_train_batch_size=1{})\n  File "/x/transformers/trainer.py", line 9, in evaluation_loop\n    y = f()\n'  # fmt: skip


@pytest.mark.parametrize(("more", "exact"), [("", True), (", per_device_eval_batch_size=4", False)])
def test_an_evaluation_has_a_batch_of_its_own(more: str, exact: bool) -> None:
    said = "meta-llama/Llama-3.1-8B max_length 4096\n" + EVALUATES.format(more)
    shape, sure = named("15.66 GiB", said, "loss = F.cross_entropy(source, target)")
    assert (shape, sure) == ("[32768, 128256] fp32", exact)


def test_logits_are_likelier_than_a_weight_of_the_same_size_where_tokens_are_named() -> None:
    term = found_for("1000.00 MiB", "gemma-2b, micro batch 1, padded to 1024").term
    assert term is not None
    assert [term.shape, *(each.shape for each in term.others)] == [
        "[1024, 256000] fp32",
        "[256000, 2048] bf16",
    ]


def test_a_mask_is_certain_only_where_something_says_that_one_is_made() -> None:
    said = "my own transformer, batch 8, sequence length 1024"
    assert not named("32.00 MiB", said)[1]
    assert named("32.00 MiB", said, "mask = torch.zeros(b, 1, n, n)") == ("[8, 1, 1024, 1024] fp32", True)
