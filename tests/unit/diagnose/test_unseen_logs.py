"""What logs that were not in the corpus showed: a tensor by chance, a program by a word within another,
cures of a training for what trains nothing.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import MAYBE, NO, YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

RECOMPUTE = "recompute activations in backward"


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def helping(found: Diagnosis) -> str:
    return "\n".join(f"{cure.change} | {cure.where}" for cure in found.cures if cure.helps != NO)


def short_of(asked: str) -> str:
    return modern(asked, "79.25 GiB", "0.10 GiB", "79.00 GiB", "78.00 GiB", "0.02 GiB")


@pytest.mark.parametrize("size", ["1.86 GiB", "2.50 GiB", "1.96 GiB", "2.00 GiB"])
def test_a_size_that_common_products_meet_by_chance_is_no_tensor_and_no_certain_cure(size: str) -> None:
    message = modern(size, "39.39 GiB", "1.19 GiB", "38.20 GiB", "36.00 GiB", "0.90 GiB")
    for before in ((traced("backward"),), (traced("log_softmax"),), ()):
        found = found_in(*before, message)
        assert found.term is None or not found.term.shape
        assert [cure.change for cure in found.cures if cure.helps == YES] == []


def test_a_size_that_a_loss_asked_for_is_one() -> None:
    found = found_in(traced("log_softmax"), short_of("37.09 GiB"))
    assert found.term is not None
    assert found.term.shape == "[65536, 151936] fp32"


def test_two_vocabularies_in_the_same_pages_are_both_told() -> None:
    found = found_in("vllm serve x", traced("top_k_mask_logits"), short_of("594.00 MiB"))
    assert found.term is not None
    assert not found.term.exact
    assert "[1024, 151936] fp32" in [each.shape for each in found.term.others]
    named = found_in("vllm serve Qwen/Qwen2.5-7B", traced("top_k_mask_logits"), short_of("594.00 MiB"))
    assert named.term is not None
    assert (named.term.exact, named.term.rows) == (False, (1021, 1024))  # whole pages of 2 MiB
    counted = "vllm serve Qwen/Qwen2.5-7B --max-num-seqs 1024"
    told = found_in(counted, traced("top_k_mask_logits"), short_of("594.00 MiB"))
    assert told.term is not None
    assert told.term.exact


@pytest.mark.parametrize(
    ("before", "function", "size", "shape"),
    [
        ("meta-llama/Llama-3.1-70B", "get_delta_weight", "448.00 MiB", "[28672, 8192] bf16"),
        ("Qwen/Qwen2.5-7B", "_init_group", "260.00 MiB", "[18944, 3584] fp32"),
        ('"hidden_size": 8192,\n"vocab_size": 128256,', "get_state_dict", "3.91 GiB", "[128256, 8192] fp32"),
        ("Starting to load model meta-llama/Llama-3.1-70B", "create_weights", "896.00 MiB", "[57344, 8192] bf16"),
        ("Starting to load model meta-llama/Llama-3.1-70B", "create_weights", "224.00 MiB", "[14336, 8192] bf16"),
    ],
)  # fmt: skip
def test_weights_and_states_of_a_named_model_are_told_by_shape(
    before: str, function: str, size: str, shape: str
) -> None:
    found = found_in(before, traced(function), short_of(size))
    if (
        shape == "[14336, 8192] bf16"
    ):  # half of gate and up alone, or a quarter of both: two names of one size
        assert found.term is not None
        assert found.term.shape == "" or shape in [each.shape for each in (found.term, *found.term.others)]
    else:
        assert found.term is not None
        assert found.term.shape == shape


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((traced("update", module="transformers/cache_utils.py"), traced("generate")), "max_new_tokens"),
        ((traced("_sample", module="transformers/generation/utils.py"),), "max_new_tokens"),
        ((traced("_unload_and_optionally_merge"),), 'device_map="cpu"'),
        (('  File "/w/a.py", line 3, in <module>\n    out = model.generate(**inputs)',), "max_new_tokens"),
        ((traced("__call__", module="diffusers/pipelines/pipeline_flux.py"),), "enable_model_cpu_offload"),
        (("C:\\ComfyUI\\execution.py",), "--lowvram"),
    ],
)
def test_what_keeps_nothing_for_backward_is_told_of_none(lines: tuple[str, ...], told: str) -> None:
    found = found_in(*lines, short_of("2.00 GiB"))
    assert found.cause is Cause.REAL_NEED
    assert RECOMPUTE not in helping(found)
    assert told in helping(found)


def test_a_pipeline_of_a_training_script_trains() -> None:
    script = '  File "/x/diffusers/examples/train_text_to_image.py", line 3, in main\n    model(x)'
    assert RECOMPUTE in helping(found_in(script, short_of("2.00 GiB")))


def test_a_cache_that_grows_is_no_sampler() -> None:
    found = found_in(traced("update", module="transformers/cache_utils.py"), short_of("2.00 GiB"))
    assert found.term is not None
    assert found.term.component == "kv_cache"


def test_the_trial_run_of_a_server_asks_for_as_much_whatever_its_share() -> None:
    lines = ("vllm serve x", traced("profile_run", "forward", module="vllm/v1/worker/gpu_model_runner.py"))
    found = found_in(*lines, short_of("6.00 GiB"))
    assert "--max-num-batched-tokens" in helping(found)
    assert [cure.helps for cure in found.cures if "share" in cure.change] == [NO]


def test_a_graph_is_captured_by_a_dummy_run() -> None:
    lines = ("vllm serve x", traced("capture_model", "_capture_cudagraphs", "_dummy_run"))
    assert found_in(*lines, FULL_CARD).cause is Cause.ENGINE_OVERCOMMIT


def test_overlap_is_not_verl() -> None:
    frame = '  File "/x/sglang/srt/managers/scheduler.py", line 9, in run_scheduler_process'
    found = found_in(frame, "    scheduler.event_loop_overlap()", FULL_CARD)
    assert (found.cause, "--mem-fraction-static" in helping(found)) == (Cause.ENGINE_OVERCOMMIT, True)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[2024-05-01] [ERROR] [launch.py:325] ['python', 'a.py'] exits with return code = -9", Cause.NOT_GPU_MEMORY),
        ("ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough", Cause.UNKNOWN),
    ],
)  # fmt: skip
def test_launchers_and_placers_are_heard(text: str, cause: Cause) -> None:
    found = found_in(text)
    assert (found.found, found.cause) == (True, cause)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("deepspeed_config:\n  zero_stage: 2", "zero_stage: 3"),
        ("deepspeed_config:\n  zero_stage: 3", "offload_optimizer_device: cpu"),
        ('{"zero_optimization": {"stage": 1}}', '"zero_optimization": {"stage": 3}'),
        ('{"zero_optimization": {"stage": 3}}', '"offload_optimizer": {"device": "cpu"}'),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_sharding_strategy: FULL_SHARD"),
        ("fsdp_sharding_strategy: FULL_SHARD", "fsdp_offload_params: true"),
    ],
)
def test_more_shards_are_told_in_the_configuration_s_words(said: str, where: str) -> None:
    found = found_in(said, traced("step", "_init_group"), FULL_CARD)
    (spread,) = (cure for cure in found.cures if cure.change.startswith("states over more GPUs"))
    assert (spread.helps, spread.where) == (MAYBE, where)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("total_loss += loss", Cause.LEAK), ("running_loss = running_loss + batch_loss", Cause.LEAK),
        ("loss += aux_loss", Cause.REAL_NEED), ("total_loss = total_loss + kl_loss", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_parts_of_one_step_s_loss_are_no_leak(line: str, cause: Cause) -> None:
    assert found_in('  File "/w/a.py", line 3, in step', f"    {line}", FULL_CARD).cause is cause


def test_a_warm_up_of_the_rate_is_no_other_regime() -> None:
    assert found_in("warmup_steps: 100", "step: 100 loss 2.2", FULL_CARD).cause is Cause.REAL_NEED
    assert found_in("freeze_steps: 100", "step: 100 loss 2.2", FULL_CARD).cause is Cause.REGIME_CHANGE


def test_a_traceback_of_another_error_says_nothing_of_this_one() -> None:
    trained = "{'loss': 0.9, 'learning_rate': 1e-05}"
    saving = (traced("_save_checkpoint"), "OSError: no space")
    mine = (traced("training_step", "forward"), FULL_CARD)
    assert found_in(trained, *saving, *mine).cause is Cause.REAL_NEED
    assert found_in(trained, *mine, *saving).cause is Cause.REAL_NEED
    assert found_in(trained, traced("_save_checkpoint"), FULL_CARD).cause is Cause.REGIME_CHANGE


@pytest.mark.parametrize(
    "frame",
    [
        "File site-packages/torch/nn/functional.py:3053, in cross_entropy(input, target)",
        "/usr/lib/python3.8/dist-packages/torch/nn/functional.py in cross_entropy(input, target)",
        "│ /usr/lib/torch/nn/functional.py:3053 in cross_entropy                    │",
    ],
)
def test_frames_of_notebooks_and_boxes_are_read(frame: str) -> None:
    found = found_in(frame, "-> 3053 return x", FULL_CARD)
    assert found.term is not None
    assert found.term.path == "loss"


def test_before_the_first_step_no_batch_helps() -> None:
    found = found_in(traced("__init__", "_ddp_init_helper"), FULL_CARD)
    assert "micro-batch" not in helping(found)
    assert "ZeRO" in helping(found)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'x'\nUnable to shutdown process 1201 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        "Sending process 1201 closing signal SIGKILL",
        "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop",
    ],
)  # fmt: skip
def test_a_launcher_s_own_kill_and_a_list_of_what_may_be_kill_nothing(text: str) -> None:
    assert not found_in(text).found
    assert found_in(text, "traceback : Signal 9 (SIGKILL) received by PID 7").cause is Cause.NOT_GPU_MEMORY


def test_nothing_has_run_before_a_sanity_check() -> None:
    names = ("fit", "_run_sanity_check", "validation_step")
    assert found_in(traced(*names), FULL_CARD).cause is Cause.REAL_NEED
    assert found_in(traced("fit", "validation_step"), FULL_CARD).cause is Cause.REGIME_CHANGE


def test_every_library_s_refused_handle_is_one() -> None:
    found = found_in("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    assert found.open_between == (Cause.OUTSIDE_ALLOCATOR, Cause.FOLLOW_UP_ERROR)


def test_tokens_that_are_named_find_a_common_vocabulary_where_a_loss_asked() -> None:
    found = found_in("batch_size: 1, max_length: 4096", traced("log_softmax"), short_of("1.96 GiB"))
    assert found.term is not None
    assert found.term.shape == "[4096, 128256] fp32"


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("[AutoTuner] Skipping tactic 3: CUDA out of memory. Tried to allocate 2.00 GiB.", "throughput: 21.2 tokens/s"),
        ("Trial 3 failed with parameters: CUDA out of memory. Tried to allocate 2.00 GiB.", "Trial 4 finished with value: 1"),
        ("retrying: CUDA out of memory. Tried to allocate 2.00 GiB.", "INFO: Application startup complete."),
    ],
)  # fmt: skip
def test_servers_and_searches_go_on_too(line: str, after: str) -> None:
    assert found_in(line).found
    assert not found_in(line, after, after).found


@pytest.mark.parametrize(
    "text",
    [
        "Status:  Failed\nReason:  Evicted\nMessage: The node was low on resource: memory.",
        "slurmstepd: error: Exceeded step memory limit at some point.",
        "    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_what_ends_a_job_for_its_host_memory(text: str) -> None:
    assert found_in(text).cause is Cause.NOT_GPU_MEMORY


def test_a_full_disk_beside_a_mount_is_no_shared_memory() -> None:
    text = "OSError: [Errno 28] No space left on device: '/data/out/checkpoint-200/optimizer.pt'"
    assert not found_in(text, "step 201 of 1000", "tmpfs  64G  1% /dev/shm").found


def test_a_request_of_a_device_by_its_ordinal_is_xlas() -> None:
    text = "Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0"
    assert found_in(f"RuntimeError: {text}").open_between == (Cause.REAL_NEED, Cause.OTHER_PROCESS)


def test_a_cache_that_llama_cpp_was_refused() -> None:
    text = "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"
    assert found_in(text).cause is Cause.REAL_NEED
