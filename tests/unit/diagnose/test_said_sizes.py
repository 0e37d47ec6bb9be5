"""Sizes of a job as programs say them, and what they leave unsaid: the tensor follows from the words, and is
not called exact where another fits as well.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced
from tests.unit.diagnose.test_model_tensors import died_of, term_of

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

QWEN, ROWS = "Qwen/Qwen2.5-1.5B-Instruct", 151_936
MEGATRON = """
  micro_batch_size ................................ 1
  seq_length ...................................... {length}
  tensor_model_parallel_size ...................... {cut}
 > padded vocab (size: 128256) with 256 dummy tokens (new size: 128512)
  File "/x/megatron/core/models/gpt/gpt_model.py", line 3, in forward
"""


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


@pytest.mark.parametrize(("length", "cut"), [(8192, 4), (4096, 2), (16384, 8)])
def test_arguments_behind_dots_are_read(length: int, cut: int) -> None:
    said = MEGATRON.format(length=length, cut=cut)
    rows = 128_512 // cut
    term = term_of(length * rows * 4, said, "calculate_logits_max")
    assert term is not None
    assert (term.shape, term.exact) == (f"[{length}, {rows}] fp32", True)


@pytest.mark.parametrize(
    "batch",
    [
        "Batch size per device = 2", "per_device_train_batch_size: 2", "micro_batch_size = 2",
        '"train_micro_batch_size_per_gpu": 2', "actor.ppo_micro_batch_size_per_gpu=2",
        "log_prob_micro_batch_size_per_gpu: 2", "train_micro_batch_size_per_gpu  2",
    ],
)  # fmt: skip
def test_a_batch_decides_between_fp32_and_twice_the_tokens(batch: str) -> None:
    said = "Qwen/Qwen3-14B max_seq_length = 8192"
    size = 8192 * 17_408 * 4
    term = term_of(size, f"{said} {batch}", "forward")
    assert term is not None
    assert (term.shape, term.exact) == ("[16384, 17408] bf16", True)
    unsaid = term_of(size, said, "forward")
    assert unsaid is not None
    assert not unsaid.exact
    assert "twice as many" in unsaid.words


@pytest.mark.parametrize("more", [0, 1])
def test_a_row_more_is_asked_of_the_projection_where_the_code_says_so(more: int) -> None:
    kept = "logits_to_keep + 1" if more else "logits_to_keep"
    called = f"logits = model(ids, logits_to_keep={kept}).logits"
    trace = "\n".join(
        (
            traced("train", "training_step"),
            '  File "/x/trl/trainer/grpo_trainer.py", line 9, in _get_per_token_logps',
            f"    {called}",
            '  File "/x/transformers/models/qwen2/modeling_qwen2.py", line 9, in forward',
            "    logits = self.lm_head(hidden_states[:, slice_indices, :])",
        )
    )
    said = f"{QWEN} bf16 per_device_train_batch_size=8, max_completion_length=1024\n{trace}"
    term = died_of(8 * (1024 + more) * ROWS * 2, said).term
    assert term is not None
    assert term.shape == f"[{8 * (1024 + more)}, {ROWS}] bf16"


PICTURES = 'pipe("a cat")  # {said}\n  File "/x/pipeline_sdxl.py", line 9, in __call__\n    image = {code}\n'


@pytest.mark.parametrize(("said", "side"), [("1024x1024", 1024), ("1536 × 1536", 1536)])
def test_the_sides_of_a_picture_are_its_autoencoder_s_tokens(said: str, side: int) -> None:
    tokens = (side // 8) ** 2
    text = PICTURES.format(said=said, code="self.vae.decode(latents)[0]")
    term = term_of(tokens * tokens * 4, text, "get_attention_scores")
    assert term is not None
    assert term.shape == f"[1, 1, {tokens}, {tokens}] fp32"
    unet = PICTURES.format(said=said, code="self.unet(latents)[0]")
    other = term_of(tokens * tokens * 4, unet, "get_attention_scores")
    assert other is None or not other.exact


@pytest.mark.parametrize("name", ["restore_optimizers", "load_optimizer_state_dict", "load_optimizer_state"])
def test_an_optimizer_s_states_are_put_back_by_a_training_that_goes_on(name: str) -> None:
    assert found_in(traced(name, "load_state_dict"), FULL_CARD).cause is Cause.REGIME_CHANGE
    assert found_in(traced("main", "load_state_dict"), FULL_CARD).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("{'loss': 1.2043, 'epoch': 0.5}", Cause.REGIME_CHANGE),
        ("{'loss': '1.2043', 'epoch': '0.5'}", Cause.REGIME_CHANGE),
        ("{'eval_loss': 1.2043, 'epoch': 0.5}", Cause.REAL_NEED),
        ("{'loss': 1.2043, 'accuracy': 0.5}", Cause.REAL_NEED),
    ],
)
def test_losses_in_a_log_are_a_training_s(line: str, cause: Cause) -> None:
    assert found_in(line, traced("_save_checkpoint", "get_state_dict"), FULL_CARD).cause is cause


def test_a_sampler_s_width_is_the_named_model_s() -> None:
    said = "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy requests."
    term = found_in("vllm serve Qwen/Qwen3-8B", said).term
    assert term is not None
    assert (term.shape, term.exact) == ("[512, 151936] fp32", False)
    term = found_in("vllm serve /data/own", said).term
    assert term is not None
    assert term.shape == "[512, vocabulary] fp32"


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        (64 * 1024 * 32_000 * 4, "[64, 1024, 32000] fp32"),
        (64 * 1024 * 4096 * 2, "[64, 1024, 4096] bf16"),
        (64 * 1024 * 32_000 * 2, None),
    ],
)
def test_a_printed_buffer_as_large_as_the_request_is_its_tensor(asked: int, shape: str | None) -> None:
    term = found_in(
        f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {asked} bytes.",
        "Peak buffers:", "\tBuffer 1:", "\t\tSize: 7.81GiB", "\t\tShape: f32[64,1024,32000]",
        "\tBuffer 2:", "\t\tSize: 512.00MiB", "\t\tShape: bf16[64,1024,4096]",
    ).term  # fmt: skip
    assert (term and term.shape) == shape


@pytest.mark.parametrize(
    ("bar", "size", "shape"),
    [
        (" 23%|##   | 23/100", "11.72 GiB", "[96, 1024, 32000] fp32"),
        (" 23%|##   | 24/100 [01:02<01:46,  2.97it/s]", "11.72 GiB", "[96, 1024, 32000] fp32"),
        (" 23%|##   | 40/100", "11.72 GiB", ""),
    ],
)
def test_predictions_of_an_evaluation_are_of_the_batches_so_far(bar: str, size: str, shape: str) -> None:
    said = "Llama-2-7b, eval batch size is 4, max_seq_length 1024"
    trace = traced("evaluate", "torch_pad_and_concatenate")
    found = diagnose_texts({"log": f"{said}\n{bar}\n{trace}\n" + modern(
        size, "39.39 GiB", "8.24 GiB", "31.15 GiB", "29.90 GiB", "716.80 MiB"
    )})  # fmt: skip
    assert found.term is not None
    assert found.term.shape == shape
