"""Cures by the function that asked, in the words of the tool that ran, and none of what is done already."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import MAYBE, NO, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

RECOMPUTE = "recompute activations in backward"


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def places(found: Diagnosis) -> str:
    return "\n".join(cure.where for cure in found.cures if cure.helps == MAYBE)


@pytest.mark.parametrize(
    ("sign", "helps"),
    [
        ('  File "/x/torch/utils/checkpoint.py", line 9, in recompute_fn', NO),
        ("gradient_checkpointing: true", NO), ("gradient_checkpointing=True", NO), ("--gradient_checkpointing", NO),
        ("--recompute-granularity full", NO), ('use_gradient_checkpointing = "unsloth"', NO),
        ("--gradient_checkpointing False", MAYBE), ("gradient_checkpointing: false", MAYBE), ("--seed 1", MAYBE),
        ("--recompute-granularity selective", MAYBE),
    ],
)  # fmt: skip
def test_what_is_recomputed_already_is_no_cure(sign: str, helps: str) -> None:
    found = found_in(sign, traced("training_step", "backward"), FULL_CARD)
    assert [cure.helps for cure in found.cures if cure.change == RECOMPUTE] == [helps]


@pytest.mark.parametrize(
    ("sign", "where"),
    [
        ("/x/transformers/trainer.py", 'optim="adamw_torch_fused"'),
        ("axolotl", "optimizer: adamw_torch_fused"),
        ("plain", "fused=True (or foreach=False)"),
    ],
)
def test_what_a_step_makes_for_many_weights_is_not_made_by_one_kernel(sign: str, where: str) -> None:
    found = found_in(sign, traced("step", "_multi_tensor_adamw"), FULL_CARD)
    assert found.cures[0].where == where
    assert found.term is not None
    assert found.term.path == "optimizer/step"
    assert "one kernel" not in found_in(sign, traced("step", "_init_group"), FULL_CARD).cures[0].change


@pytest.mark.parametrize(
    ("sign", "where"),
    [
        ("plain", "fully_shard"),
        ("/x/deepspeed/runtime/engine.py", "stage3_max_live_parameters"),
        ("fsdp_activation_checkpointing: false", "fsdp_auto_wrap_policy"),
    ],
)
def test_weights_gathered_are_fewer_in_smaller_units(sign: str, where: str) -> None:
    assert where in found_in(sign, traced("unshard", "foreach_all_gather"), FULL_CARD).cures[0].where


@pytest.mark.parametrize(
    ("frames", "module", "where"),
    [
        (("_get_prompt_logprobs_dict", "compute_logprobs"), "x/vllm/v1/sample/sampler.py", "prompt_logprobs=None"),
        (("forward", "process_input_logprobs"), "x/sglang/srt/layers/logits_processor.py", "logprob_start_len=-1"),
    ],
)  # fmt: skip
def test_log_probabilities_of_a_prompt_are_the_server_s_at_run_time(
    frames: tuple[str, ...], module: str, where: str
) -> None:
    found = found_in(traced(*frames, module=module), FULL_CARD)
    assert (found.cause, where in places(found)) == (Cause.ENGINE_OVERCOMMIT, True)
    trained = found_in(traced("training_step", "compute_logprobs"), FULL_CARD)
    assert trained.cause is Cause.REAL_NEED


def test_lightning_evaluates_without_gradients() -> None:
    trace = '  File "/x/lightning/pytorch/loops/evaluation_loop.py", line 9, in _run_stage'
    found = found_in(trace, traced("fit", "validation_step"), FULL_CARD)
    assert "torch.no_grad()" not in places(found)
    assert "torch.no_grad()" in places(found_in(traced("fit", "validation_step"), FULL_CARD))


@pytest.mark.parametrize(
    ("setting", "says"), [("freeze_steps", "more is trained"), ("curriculum_switch_step", "another one")]
)
def test_a_change_is_said_to_be_what_its_setting_says(setting: str, says: str) -> None:
    found = found_in(f"{setting}: 2000", "step: 2000 loss 2.2", FULL_CARD)
    assert (found.cause, says in found.because) == (Cause.REGIME_CHANGE, True)


def test_a_preferred_and_an_other_row_are_two_rows() -> None:
    """4 × 4,096 × 128,256 × 2 bytes = 2 × 4,096 × 128,256 × 4 bytes = 3.91 GiB."""
    short = modern("3.91 GiB", "79.15 GiB", "1.31 GiB", "77.84 GiB", "76.00 GiB", "0.55 GiB")
    named = "meta-llama/Llama-3.1-8B max_length=4096 per_device_train_batch_size=2"
    line = traced("forward") + "\n    logits = self.lm_head(hidden_states)"
    pairs = found_in(named, traced("concatenated_forward"), line, short).term
    rows = found_in(named, line, short).term
    assert pairs is not None
    assert rows is not None
    assert not pairs.exact
    assert "[16384, 128256] bf16" in [each.shape for each in (pairs, *pairs.others)]
    assert rows.shape == "[8192, 128256] fp32"


REFUSED = (
    "cudaMalloc failed: out of memory\n"
    "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 8942256128"
)


def test_ollama_is_told_in_its_own_words() -> None:
    plain = found_in(f"llama_context: n_ctx = 8192\n{REFUSED}")
    asked = found_in(f"llama runner process has terminated: {REFUSED}")
    assert "-c N" in places(plain)
    assert "num_ctx N" in places(asked)
    assert " -" not in f" {places(asked)}".replace("\n", " ")


BUFFER = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16825.37 MiB on device 0: "
    "cudaMalloc failed: out of memory"
)
LOADS = "llama_model_load: error loading model: unable to allocate CUDA0 buffer"


@pytest.mark.parametrize(
    "beside",
    [
        "on our compute node, nothing else runs there",
        "Device 0: NVIDIA GeForce RTX 4080, compute capability 8.9, VMM: yes, 16075 MiB",
        "does the kv cache matter?",
    ],
)
@pytest.mark.parametrize("lines", [(BUFFER, LOADS), (LOADS, BUFFER)])
def test_weights_that_have_no_room_are_weights_whatever_words_stand_beside(
    lines: tuple[str, ...], beside: str
) -> None:
    """The program's own words say which buffer it was, and people's none of it."""
    for text in ((*lines, beside), (beside, *lines)):
        found = diagnose_texts({"log": "\n".join(text)})
        assert found.term is not None
        assert found.term.component == "parameters"
        assert [cure.where for cure in found.cures if cure.helps != NO][:1] == ["-ngl N"]
        assert not any(cure.where == "-c N" and cure.helps != NO for cure in found.cures)


@pytest.mark.parametrize(
    "words",
    [
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 17642668032",
        "graph_reserve: failed to allocate compute buffers",
        "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
    ],
)
def test_a_graph_without_room_is_told_by_its_own_words(words: str) -> None:
    term = found_in(BUFFER, words).term
    assert term is not None
    assert term.path == "compute graph"


@pytest.mark.parametrize(("card", "decided"), [("RTX 4080", True), ("RTX 4090", False), ("", False)])
def test_one_buffer_above_the_whole_card_is_nobody_else_s_fault(card: str, decided: bool) -> None:
    """16.43 GiB at once: a card of 16 GB has never so much, whoever is on it; one of 24 GB may have."""
    found = found_in(LOADS, BUFFER, f"{card}, llama-server -ngl 99 -c 8192")
    assert found.undecided is not decided
    assert (found.cause is Cause.REAL_NEED) is decided


def test_every_batch_refused_is_open_and_a_smaller_one_no_cure() -> None:
    found = found_in("RuntimeError: No executable batch size found, reached zero.")
    assert found.open_between == (Cause.REAL_NEED, Cause.OTHER_PROCESS)
    assert [cure.helps for cure in found.cures if cure.change == "a smaller batch"] == [NO]


@pytest.mark.parametrize(
    "text",
    ["OSError: Cannot allocate memory (os error 12)", "bash: fork: Cannot allocate memory", "fatal error: runtime: out of memory"],
)  # fmt: skip
def test_more_words_for_refused_host_memory(text: str) -> None:
    assert found_in(text).cause is Cause.NOT_GPU_MEMORY


def in_code(code: str, *, module: str = "site-packages/pkg/model.py", name: str = "forward") -> str:
    frame = f'  File "/x/{module}", line 3, in {name}\n    {code}'
    return f"Traceback (most recent call last):\n{frame}\n"


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("logits = logits.float()", "loss"),
        ("shift_logits = logits[..., :-1, :].contiguous()", "loss"),
        (
            "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)",
            "attention/scores",
        ),
        ("attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling", "attention/scores"),
        ("attn_weights = attn_weights + causal_mask", "attention/scores"),
        ("att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))", "attention/scores"),
        ("scores = torch.matmul(q, k.transpose(-2, -1))", "attention/scores"),
        ("scores = torch.softmax(router_logits, dim=-1)", None),
        ("router_logits = self.gate(x).float()", None),
        ("upsampled_logits = nn.functional.interpolate(logits.float(), size=size)", None),
        ("logits.float(), labels, ignore_index=self.ignore_index", "loss"),
        ("x = self.dropout(x)", None),
    ],
)
def test_a_line_of_code_says_what_it_makes(code: str, path: str | None) -> None:
    found = found_in(in_code(code), FULL_CARD)
    assert (found.term.path if found.term else None) == path


@pytest.mark.parametrize(
    "frame",
    [
        "File ~/env/model.py:9, in Model.forward(self)\n      8 x = 1\n----> 9 logits = logits.float()",
        "│ /env/model.py:9 in forward │\n│   8 │   x = 1 │\n│ ❱ 9 │   logits = logits.float() │",
    ],
)
def test_an_arrow_points_at_the_line_of_code(frame: str) -> None:
    found = found_in("OutOfMemoryError                 Traceback (most recent call last)", frame, FULL_CARD)
    assert found.term is not None
    assert found.term.path == "loss"


def test_logits_of_a_server_are_its_sampler_s() -> None:
    found = found_in(
        "vllm serve x",
        in_code("logits = logits.to(torch.float32)", module="vllm/v1/sample/sampler.py"),
        FULL_CARD,
    )
    assert found.term is not None
    assert found.term.path == "sampler"


@pytest.mark.parametrize(
    ("said", "code", "name", "asked", "shape"),
    [
        ("Llama-3-8B, per_device_train_batch_size=4, block_size 2048", "logits = logits.float()", "forward", "3.91 GiB", "[8192, 128256] fp32"),
        ("local batch size 4, sequence length 8192", "pred.flatten(0, 1).float()", "cross_entropy_loss", "15.66 GiB", "[32768, 128256] fp32"),
        ("Llama-2-7b, batch size 4, context 4096", "attn = softmax(attn_weights, dim=-1)", "forward", "8.00 GiB", "[4, 32, 4096, 4096] fp32"),
        ("Qwen2.5-1.5B, per_device_train_batch_size=16, max_completion_length=4096", "F.linear(input, self.weight)", "_get_per_token_logps",
         "18.55 GiB", "[65536, 151936] bf16"),
    ],
)  # fmt: skip
def test_lengths_by_every_name_find_the_tensor(
    said: str, code: str, name: str, asked: str, shape: str
) -> None:
    card = modern(asked, "79.25 GiB", "0.10 GiB", "79.00 GiB", "78.00 GiB", "0.02 GiB")
    found = found_in(in_code(code, name=name), card, said)
    assert found.term is not None
    assert found.term.shape == shape


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("buf41 = empty_strided_cuda((16, 4096, 16384), (67108864, 16384, 1), torch.bfloat16)", "[16, 4096, 16384] bf16"),
        ("out = torch.empty((16, 4096, 8192), dtype=torch.float32, device=x.device)", "[16, 4096, 8192] fp32"),
        ("buf41 = empty_strided_cuda((16, 4096, 128), (524288, 128, 1), torch.bfloat16)", ""),
    ],
)  # fmt: skip
def test_a_buffer_written_out_in_code_is_the_tensor_where_its_size_is(code: str, shape: str) -> None:
    found = found_in(in_code(code, name="call"), FULL_CARD)
    assert (found.term.shape if found.term else "") == shape


@pytest.mark.parametrize("name", ["_unshard", "_alloc_padded_unsharded_flat_param", "init_unsharded_param"])
def test_what_unshards_gathers_weights(name: str) -> None:
    found = found_in(traced("backward", "_pre_backward_hook", name), FULL_CARD)
    assert found.term is not None
    assert found.term.component == "unsharded_parameters"


def test_a_script_s_own_line_says_that_it_trains() -> None:
    evaluates = '  File "/x/transformers/trainer.py", line 4, in evaluation_loop\n    step()\n'
    trains = in_code("trainer.train()", module="finetune.py", name="<module>") + evaluates
    assert found_in(trains, FULL_CARD).cause is Cause.REGIME_CHANGE
    only = in_code("trainer.evaluate()", module="finetune.py", name="<module>") + evaluates
    assert found_in(only, FULL_CARD).cause is Cause.REAL_NEED


def test_room_for_adapters_is_made_smaller_by_fewer() -> None:
    found = found_in(
        "vllm serve x", traced("load_model", "create_lora_weights", module="vllm/lora/layers.py"), FULL_CARD
    )
    assert found.cause is Cause.REAL_NEED
    assert found.cures[0].where == "--max-loras N, --max-lora-rank N"


@pytest.mark.parametrize(
    "line", ["Prefill batch. #new-seq: 12, #new-token: 8192", "Decode batch. #running-req: 8", "Avg prompt throughput: 3.0 tokens/s"]
)  # fmt: skip
def test_a_server_that_prints_its_batches_runs(line: str) -> None:
    error = in_code("gate_up, _ = self.gate_up_proj(x)", module="sglang/srt/models/qwen2.py")
    assert found_in("sglang serve", line, error, FULL_CARD).cause is Cause.ENGINE_OVERCOMMIT
    assert found_in("sglang serve", error, FULL_CARD).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    "name",
    [
        "_configure_zero_optimizer",
        "_create_fp32_partitions",
        "_build_model_and_main_param_groups",
        "_ddp_init_helper",
    ],
)
def test_no_batch_helps_what_is_made_before_the_first_step(name: str) -> None:
    found = found_in(traced("initialize", name), FULL_CARD)
    assert [cure.helps for cure in found.cures if "batch" in cure.change] == [NO]


@pytest.mark.parametrize(
    ("sign", "name", "where"),
    [
        ("/x/deepspeed/runtime/engine.py", "__reduce_and_partition_ipg_grads", "reduce_bucket_size"),
        ("plain", "foreach_reduce", "fully_shard"),
    ],
)
def test_gradients_are_summed_in_smaller_parts(sign: str, name: str, where: str) -> None:
    found = found_in(sign, traced("backward", name), FULL_CARD)
    assert found.term is not None
    assert found.term.component == "gradients"
    assert where in places(found)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("meta-llama/Llama-3.1-8B, per_device_train_batch_size=4, max_seq_length=8192", "hidden_states = hidden_states.to(torch.float32)"),
        ("max_seq_length=8192", "down_proj = self.down_proj(x)"),
    ],
)  # fmt: skip
def test_what_is_as_wide_as_a_vocabulary_is_no_logits_where_no_loss_asked(said: str, code: str) -> None:
    found = found_in(
        in_code(code),
        modern("512.00 MiB", "79.25 GiB", "0.10 GiB", "79.00 GiB", "78.00 GiB", "0.02 GiB"),
        said,
    )
    assert found.term is None or found.term.path == "mlp" or found.term.shape == "[32768, 4096] fp32"


def test_a_loss_in_chunks_already_has_more_of_them() -> None:
    asked = in_code("logits.float(), labels", name="compute_cross_entropy")
    assert "num_output_chunks" in places(
        found_in("torchtune.modules.loss.CEWithChunkedOutputLoss", asked, FULL_CARD)
    )
    assert "num_output_chunks" not in places(found_in(asked, FULL_CARD))


METAL = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.21 GB, other allocations: 412.33 MB, max allowed: 18.13 GB). "
    "Tried to allocate 1.08 GB on private pool."
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "cause", "no_limit"),
    [
        ("MacBook Air M2 16GB", Cause.REAL_NEED, "no"),
        ("Mac Studio with 64 GB", Cause.LIMIT_SET, "maybe"),
        ("", Cause.LIMIT_SET, "maybe"),
    ],
)
def test_no_limit_is_short_where_the_whole_machine_has_less(said: str, cause: Cause, no_limit: str) -> None:
    found = diagnose_texts({"log": f"{said}\n{METAL}"})
    assert found.cause is cause
    assert [cure.helps for cure in found.cures if cure.change.startswith("no limit")] == [no_limit]


@pytest.mark.parametrize(
    ("said", "infers"),
    [
        ("just inference with a long prompt", True),
        ("No training at all, I only generate", True),
        ("inference is fine, but training dies", False),
        ("LoRA on my card", False),
    ],
)
def test_people_say_that_nothing_is_trained(said: str, infers: bool) -> None:
    found = diagnose_texts({"log": f"{said}\n{FULL_CARD}"})
    assert any("recompute" in cure.change and cure.helps != "no" for cure in found.cures) is not infers


@pytest.mark.parametrize("beams", ["generation_num_beams=5", "num_beams: 4", "num_beams=1", ""])
def test_an_evaluation_that_writes_is_told_of_its_own_batch_and_beams(beams: str) -> None:
    trace = traced(
        "train", "prediction_step", "generate", "_beam_search", module="site-packages/transformers/trainer.py"
    )
    found = diagnose_texts({"log": f"{beams}\n{trace}\n{FULL_CARD}"})
    assert found.cures[0].where == "per_device_eval_batch_size"
    assert any(cure.change == "fewer beams" for cure in found.cures) is (beams[-1:] in ("5", "4"))
