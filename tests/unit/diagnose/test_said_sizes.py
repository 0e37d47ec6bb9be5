"""Sizes of a job as programs say them, and what they leave unsaid: the tensor follows from the words, and is
not called exact where another fits as well.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced
from tests.unit.diagnose.test_model_tensors import died_of, term_of

from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

FRAME = 'File "/x/ldm/modules/attention.py", line 3, in forward\n    '
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


def test_predictions_are_of_the_batches_and_positions_that_people_say() -> None:
    said = "gpt2-medium, per_device_eval_batch_size 16, after 5 eval batches\n 10%|#  | 500/5000 [08:31<"
    size = modern("18.41 GiB", "39.39 GiB", "14.02 GiB", "25.37 GiB", "24.10 GiB", "788.48 MiB")
    trace = traced("evaluation_loop", "torch_pad_and_concatenate")
    term = diagnose_texts({"log": f"{said}\n{trace}\n{size}"}).term
    assert term is not None
    assert (term.shape, term.exact) == ("[96, 1024, 50257] fp32", False)


@pytest.mark.parametrize("said", ["batch 8 x 2048", "bs=8, 2048)", "mbs 8 × 2048", "batch size 8*2048"])
def test_a_batch_is_said_with_its_length(said: str) -> None:
    term = term_of(8 * 2048 * 128_256 * 4, f"Llama-3-8B ({said}", "cross_entropy")
    assert term is not None
    assert (term.shape, term.exact) == ("[16384, 128256] fp32", True)


@pytest.mark.parametrize(
    ("tokens", "shape"), [(4096, "[16384, 256000] bf16"), (8192, "[16384, 256000] fp32")]
)
def test_logits_have_the_width_that_the_named_tokens_come_to(tokens: int, shape: str) -> None:
    size = 16_384 * 256_000 * (2 if tokens == 4096 else 4)
    said = f"google/gemma-2-9b bf16 micro_batch_size: {16_384 // tokens} sequence_len: {tokens}"
    term = term_of(size, f"{said}\n{FRAME}logits = torch.tanh(logits)")
    assert term is not None
    assert (term.shape, term.exact) == (shape, True)


def test_a_picture_s_widest_attention_has_its_network_s_heads() -> None:
    code = f"{FRAME}sim = einsum('b i d, b j d -> b i j', q, k) * self.scale"
    term = term_of(16 * 16_384**2 * 2, f"1024x1024\n{code}")
    assert term is not None
    assert not term.exact
    assert {each.shape for each in (term, *term.others)} == {
        "[1, 8, 16384, 16384] fp32", "[1, 16, 16384, 16384] bf16"
    }  # fmt: skip


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


def named(said: str, size: str, line: str = "", *names: str) -> tuple[list[str], bool] | None:
    """The shapes that a request is told to be, and whether the first is certain."""
    trace = "\n".join(f'  File "model.py", line 7, in {name}' for name in names or ("forward",))
    message = modern(size, "79.10 GiB", "0.21 GiB", "78.90 GiB", "78.20 GiB", "96.00 MiB")
    term = diagnose_texts({"log": f"{said}\n{trace}\n    {line}\n{message}"}).term
    return None if term is None else ([term.shape, *(each.shape for each in term.others)], term.exact)


SOFTMAX = "attn = attn.softmax(dim=-1)"
EAGER = "attn_weights = nn.functional.softmax(attn_weights, dim=-1)"


@pytest.mark.parametrize(
    ("said", "size", "line", "shapes"),
    [
        (
            "batch 5, source length 1400, some model",
            "600.00 MiB",
            EAGER,
            ["[5, 16, 1400, 1400] fp32", "[5, 32, 1400, 1400] bf16"],
        ),
        ("whisper large-v3", "1.34 GiB", EAGER, ["[8, 20, 1500, 1500] fp32", "[16, 20, 1500, 1500] bf16"]),
        (
            "hires 640x1024",
            "3.12 GiB",
            "sim = einsum('b i d, b j d -> b i j', q, k) * self.scale",
            ["[1, 8, 10240, 10240] fp32", "[1, 16, 10240, 10240] bf16"],
        ),
        ("batch 5, source length 1400, some model", "610.00 MiB", EAGER, [""]),
        ("batch 4, length 2048, some model", "1.00 GiB", EAGER, [""]),  # any power of two would do
    ],
)
def test_scores_are_named_where_one_of_their_axes_is_not_said(
    said: str, size: str, line: str, shapes: list[str]
) -> None:
    assert named(said, size, line) == (shapes, False)


@pytest.mark.parametrize(
    ("said", "size", "shape"),
    [
        ("--model vit_large_patch14_clip_336 --amp -b 100", "1018.00 MiB", "[100, 16, 577, 577] bf16"),
        ("ViT-L/16 512px, batch 16", "1.00 GiB", "[16, 16, 1025, 1025] fp32"),
        ("ViT-B/16, 384 pixels, batch 32", "488.00 MiB", "[32, 12, 577, 577] fp32"),
    ],
)
def test_positions_of_a_model_of_pictures_are_said_by_its_name(said: str, size: str, shape: str) -> None:
    assert named(said, size, SOFTMAX) == ([shape], True)


@pytest.mark.parametrize(
    "said",
    [
        "trainable params: 13,631,488 || all params: 7,255,363,584 || trainable%: 0.1878",
        "total parameters: 7,241,732,096",
        "a model of 7,241,732,096 parameters",
    ],
)
def test_a_model_is_known_by_its_number_of_parameters(said: str) -> None:
    assert named(f"{said}, batch 1, length 6000", "2.15 GiB", EAGER) == (["[1, 32, 6000, 6000] bf16"], True)
    other = said.replace("7,2", "7,3")
    assert named(f"{other}, batch 1, length 6000", "2.15 GiB", EAGER) == (
        ["[1, 16, 6000, 6000] fp32", "[1, 32, 6000, 6000] bf16"],
        False,
    )


def test_beams_are_rows_of_a_batch() -> None:
    found = named(
        "whisper-large-v3 num_beams=5, batch size 12", "220.00 MiB", "key_states = key_states.contiguous()"
    )
    assert found is not None
    assert "[90000, 1280] bf16" in found[0]


def test_the_smallest_of_a_family_is_called_as_it_is() -> None:
    assert named("gpt2, bs = 8, block_size = 1000", "1.50 GiB", "", "backward") == (
        ["[8000, 50257] fp32"],
        True,
    )
    assert named("gpt2-xl, bs = 8, block_size = 1000", "48.83 MiB", EAGER) != named(
        "gpt2, bs = 8, block_size = 1000", "48.83 MiB", EAGER
    )


@pytest.mark.parametrize(
    ("said", "size", "shape"),
    [
        ("emb is (170000, 384) float32", 115600000000, "[170000, 170000] of 4 bytes"),
        ("7,000,001 parameters with Adam", 28000004, "[7000001] of 4 bytes"),
        ("1024 rows of 4096", 16777216 * 4, ""),  # a power of two is a product of anything
        ("emb is (170001, 384) float32", 115600000000, ""),
    ],
)
def test_exact_bytes_are_a_product_of_numbers_that_a_text_says(said: str, size: int, shape: str) -> None:
    refused = f"RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes."
    term = diagnose_texts({"log": f"{said}\n{refused}"}).term
    assert (term.shape if term else "") == shape


def test_a_frame_is_read_where_a_terminal_wrapped_it() -> None:
    lines = (
        '  File "/x/timm/models/vision_transformer.py", line 9',
        "8, in forward",
        f"    {SOFTMAX}",
    )
    message = modern("1.91 GiB", "23.64 GiB", "1.04 GiB", "22.60 GiB", "22.02 GiB", "143.52 MiB")
    found = diagnose_texts({"log": "\n".join((*lines, message))})
    assert found.term is not None
    assert found.term.path == "attention/scores"
