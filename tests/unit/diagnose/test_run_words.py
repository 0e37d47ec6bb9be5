"""What a run says in its own words: that it trains more, goes on, or grows, and where it stands."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, brackets, modern, traced

from memsheet.diagnose.message import MAYBE, NO, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

STEPPED = "step 90 loss 1.31\nstep 91 loss 1.30\n"
NEARLY_FULL = modern("94.00 MiB", "14.75 GiB", "51.00 MiB", "14.70 GiB", "14.03 GiB", "123.00 MiB")
LITTLE_KEPT = modern("394.00 MiB", "14.75 GiB", "51.00 MiB", "14.70 GiB", "13.63 GiB", "533.00 MiB")


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def asked(size: str) -> str:
    return modern(size, "9.75 GiB", "20.00 MiB", "9.70 GiB", "9.40 GiB", "4.00 MiB")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Epoch 5: unfreezing the encoder", Cause.REGIME_CHANGE),
        ("step 92: unfroze 12 layers", Cause.REGIME_CHANGE),
        ("step 92: trainable parameters 3.1M -> 306.2M", Cause.REGIME_CHANGE),
        ("Epoch 5: unfreezing the encoder\nstep 93 loss 1.2\nstep 94 loss 1.2", Cause.REAL_NEED),
        ("unfreeze_encoder: true", Cause.REAL_NEED),
        ("step 92: trainable parameters 306.2M -> 3.1M", Cause.REAL_NEED),
    ],
)
def test_a_run_that_says_it_trains_more_is_another_from_there_on(said: str, cause: Cause) -> None:
    assert found_in(STEPPED, said, traced("backward"), FULL_CARD).cause is cause


def test_what_is_trained_from_the_first_step_on_is_no_other_regime() -> None:
    assert found_in("unfreezing the encoder", traced("backward"), FULL_CARD).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("epoch 0 step 100 loss 1.21", Cause.REGIME_CHANGE),
        ("iter 200: loss 1.9, time 3 ms", Cause.REGIME_CHANGE),
        ("eval step 12 loss 1.21", Cause.REAL_NEED),
        ("validation epoch 3: loss=1.21", Cause.REAL_NEED),
    ],
)
def test_losses_of_numbered_steps_are_a_training_s(line: str, cause: Cause) -> None:
    assert found_in(line, traced("evaluate", "evaluation_loop"), FULL_CARD).cause is cause


def test_a_trainer_s_checkpoint_is_of_a_training() -> None:
    saves = traced("_save_checkpoint", "save_model", module="site-packages/transformers/trainer.py")
    assert found_in(saves, FULL_CARD).cause is Cause.REGIME_CHANGE


@pytest.mark.parametrize(
    ("after", "found"), [("epoch 1 loss 1.2\nepoch 2 loss 0.9\n", False), ("", True), ("epoch 1 loss 1.2\n", True)]
)  # fmt: skip
def test_a_plain_message_is_handled_as_one_with_figures(after: str, found: bool) -> None:
    told = found_in("CUDA out of memory, retrying with batch size 32", after)
    assert told.found is found
    assert bool(told.notes) is not found


def test_behind_a_plain_message_that_is_handled_the_next_is_looked_at() -> None:
    log = ("CUDA out of memory, retrying with batch size 32", STEPPED, "RuntimeError: out of memory")
    assert found_in(*log).found


def grown(unit: str, sizes: list[int], mark: str) -> str:
    return "\n".join(f"[{n}00/9000] loss=1.1  {mark}: {size} {unit}" for n, size in enumerate(sizes, 1))


@pytest.mark.parametrize(
    ("log", "kept", "cause"),
    [
        (grown("MB", [*range(6000, 24_000, 400)], "VRAM used"), "40.00 MiB", Cause.LEAK),
        (grown("MB", [*range(6000, 24_000, 400)], "VRAM used"), "9.00 GiB", Cause.FRAGMENTATION),
        (grown("MB", [*range(6000, 24_000, 400)], "CPU memory used"), "40.00 MiB", Cause.REAL_NEED),
        (grown("MB", [*range(6000, 24_000, 400)], "peak GPU memory used"), "40.00 MiB", Cause.REAL_NEED),
        (grown("MB", [6000, 9000, 8000, 9100, 8200, 9200], "VRAM used"), "40.00 MiB", Cause.REAL_NEED),
    ],
)
def test_what_is_used_of_the_card_and_only_grows_is_a_leak_where_it_is_tensors(
    log: str, kept: str, cause: Cause
) -> None:
    held = "14.00 GiB" if kept.endswith("GiB") else "23.00 GiB"
    message = modern("114.00 MiB", "23.64 GiB", "51.00 MiB", "23.59 GiB", held, kept)
    assert found_in(log, message).cause is cause


def test_what_grows_fills_what_is_merged_too() -> None:
    log = "\n".join(f"step {n} loss 1.1 allocated {10 + 2 * n}.00 GiB" for n in range(1, 34))
    found = found_in(log, modern("256.00 MiB", "79.15 GiB", "0.10 GiB", "79.05 GiB", "77.95 GiB", "0.55 GiB"))
    assert found.cause is Cause.LEAK
    pages = next(cure for cure in found.cures if cure.change == "expandable segments")
    assert (pages.helps, "grows" in pages.why) == (MAYBE, True)


def test_what_leaves_it_open_is_said_as_it_is() -> None:
    little = found_in(LITTLE_KEPT)
    assert little.open_between == (Cause.FRAGMENTATION, Cause.REAL_NEED)
    assert "enough in sum" in little.because
    assert "too near" not in little.because
    cut = found_in(
        modern("3.48 GiB", "79.15 GiB", "1.31 GiB", None, "1 GiB", "1 GiB").partition(" Of the")[0]
    )
    assert "the message ends before" in cut.because


BLOCK = "IndexKernel.cu:92: operator(): block: [0,0,0], thread: [31,0,0] Assertion `i < n` failed."


@pytest.mark.parametrize("library", ["CUBLAS", "CUDNN"])
def test_a_handle_refused_behind_a_kernel_s_assertion_is_its_echo(library: str) -> None:
    refused = f"RuntimeError: CUDA error: {library}_STATUS_ALLOC_FAILED when calling `create(handle)`"
    assert found_in(BLOCK, refused).cause is Cause.FOLLOW_UP_ERROR
    assert found_in(refused).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    "text",
    ["OSError: [Errno 28] No space left on device: '/psm_63fa0b12'", '  File "/usr/lib/python3/pickle.py", line 1213, in load\nMemoryError'],
)  # fmt: skip
def test_refused_host_memory_in_cut_tracebacks(text: str) -> None:
    assert found_in(text).cause is Cause.NOT_GPU_MEMORY


REFUSED = (
    "[TRT] [E] [buffer.cpp::resize::153] Error Code 2: OutOfMemory (Requested size was 4831838208 bytes.)"
)
LEFT_OUT = "[TRT] [W] Skipping tactic 5 due to insufficient memory on requested size of 4831838208."


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((REFUSED,), True),
        ((REFUSED, LEFT_OUT, "[TRT] [I] Engine generation completed in 64 seconds."), False),
        ((REFUSED, LEFT_OUT, "Error Code 10: Internal Error (Could not find any implementation for node x.)"), True),
    ],
)  # fmt: skip
def test_a_build_that_leaves_kernels_out_goes_on(lines: tuple[str, ...], found: bool) -> None:
    assert found_in(*lines).found is found


@pytest.mark.parametrize("name", ["_apply", "cuda"])
def test_a_module_that_is_moved_is_weights(name: str) -> None:
    moved = traced("main", name, module="site-packages/torch/nn/modules/module.py")
    found = found_in("meta-llama/Llama-3.1-8B", moved, asked("112.00 MiB"))
    assert found.term is not None
    assert (found.term.component, found.term.exact) == ("parameters", True)
    assert [cure.helps for cure in found.cures if "batch" in cure.change] == [NO]


@pytest.mark.parametrize(
    ("said", "loads"),
    [
        ("Loading checkpoint shards:  50%|#####     | 2/4", True),
        ("Loading safetensors checkpoint shards:  75% Completed | 3/4", True),
        ("Loading checkpoint shards: 100%|##########| 4/4", False),
        ("Loading checkpoint shards:  50%|#####     | 2/4\nstep 1 loss 2.0", False),
        ("", False),
    ],
)
def test_weights_that_are_not_all_read_are_what_is_asked_for(said: str, loads: bool) -> None:
    found = found_in("meta-llama/Meta-Llama-3-8B", said, asked("112.00 MiB"))
    assert found.term is not None
    assert (found.term.component == "parameters" and found.term.exact) is loads


@pytest.mark.parametrize(
    "name", ["_init_param_handle_from_module", "_move_states_to_device", "flatten_tensors_into_flat_param"]
)
def test_units_are_whole_on_the_card_before_they_are_sharded(name: str) -> None:
    found = found_in("Qwen/Qwen2.5-32B", traced("__init__", name), asked("270.00 MiB"))
    assert found.term is not None
    assert found.term.component == "unsharded_parameters"
    assert [cure.helps for cure in found.cures if "batch" in cure.change] == [NO]


def test_the_buffer_of_a_backward_pass_is_deepspeed_s() -> None:
    line = "buf_0 = torch.empty(int(self.reduce_bucket_size),"
    path = "/x/site-packages/deepspeed/runtime/zero/stage_1_and_2.py"
    frame = f'Traceback (most recent call last):\n  File "{path}", line 9, in backward\n    {line}\n'
    found = found_in('"reduce_bucket_size": 5e8', frame, FULL_CARD.replace("2.00 GiB", "954.00 MiB"))
    assert found.term is not None
    assert (found.term.component, found.term.shape) == ("gradients", "[500000000] bf16")


@pytest.mark.parametrize(
    "said",
    [
        "max_prompt_length=512, max_completion_length=1024",
        "data.max_prompt_length=512 data.max_response_length=1024",
        "--prompt_max_len 512 --generate_max_len 1024",
    ],
)
def test_what_was_written_is_read_with_its_prompt(said: str) -> None:
    log = f"{said} per_device_train_batch_size=8 Qwen/Qwen2.5-0.5B-Instruct"
    asks = traced("train", "_get_per_token_logps")
    found = found_in(
        log, asks, modern("3.48 GiB", "23.64 GiB", "1.51 GiB", "22.10 GiB", "20.60 GiB", "0.95 GiB")
    )
    assert found.term is not None
    assert found.term.shape == "[12288, 151936] bf16"


def test_predictions_put_together_are_no_layer_s() -> None:
    found = found_in("{'loss': 0.2, 'epoch': 0.9}", traced("evaluation_loop", "nested_concat"), FULL_CARD)
    assert found.term is not None
    assert (found.cause, found.term.path) == (Cause.REGIME_CHANGE, "predictions")


def test_a_line_that_writes_scores_writes_nothing_else() -> None:
    code = "attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))"
    frame = f'Traceback (most recent call last):\n  File "/x/m.py", line 3, in forward\n    {code}\n'
    found = found_in("bert-large-uncased, batch_size=256, max_length=512, bf16", frame, FULL_CARD)
    assert found.term is not None
    assert (found.term.shape, found.term.exact) == ("[256, 16, 512, 512] bf16", True)


def test_padded_rows_that_are_said_are_padded_no_more() -> None:
    said = {
        "padded_vocab_size": 151936,
        "tensor_model_parallel_size": 4,
        "seq_length": 4096,
        "micro_batch_size": 1,
    }
    log = "\n".join(f"{name} ....... {value}" for name, value in said.items())
    step = " iteration  9/ 100 | elapsed time per iteration (ms): 410.1 | lm loss: 2.9E+00 |"
    found = found_in(
        log, step, modern("594.00 MiB", "79.10 GiB", "330.00 MiB", "78.00 GiB", "75.00 GiB", "0.19 GiB")
    )
    assert found.program == "Megatron-LM"
    assert found.term is not None
    assert found.term.shape == "[4096, 37984] fp32"


@pytest.mark.parametrize(("sign", "others"), [("", 0), ("fsdp", 3)])
def test_states_are_of_one_weight_where_nothing_joins_them(sign: str, others: int) -> None:
    log = f"meta-llama/Llama-3.1-8B {sign}"
    found = found_in(
        log,
        traced("step", "_init_group"),
        modern("1.96 GiB", "79.15 GiB", "1.10 GiB", "78.00 GiB", "76.00 GiB", "0.50 GiB"),
    )
    assert found.term is not None
    assert len(found.term.others) == others


def test_a_sampler_s_rows_and_words_are_said() -> None:
    words = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    found = found_in("vllm serve Qwen/Qwen3-8B", words)
    assert found.term is not None
    assert "1,024 requests × 151,936 words × 4 bytes" in found.term.words


SMI = "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |"


@pytest.mark.parametrize(("first", "told"), [(9120, True), (24_000, False), (20_000, False)])
def test_a_card_that_has_room_is_told(first: int, told: bool) -> None:
    rows = [
        f"| 30%   41C    P2   110W /  350W |  {used:>6}MiB /  24576MiB |      3%      Default |"
        for used in (first, 24_251)
    ]
    found = found_in(
        modern("512.00 MiB", "23.69 GiB", "0.21 GiB", "23.40 GiB", "22.80 GiB", "0.05 GiB"), SMI, *rows
    )
    assert any(note.startswith("card 0 ") for note in found.notes) is told


def test_bytes_that_are_allocated_and_only_grow_are_a_leak() -> None:
    log = "\n".join(
        f"epoch {n}: torch.cuda.memory_allocated()={2 * 10**9 + n * 41 * 10**7}" for n in range(1, 52)
    )
    assert found_in(log, FULL_CARD).cause is Cause.LEAK
    assert found_in(log.replace("memory_all", "max_memory_all"), FULL_CARD).cause is Cause.REAL_NEED


def test_a_server_whose_graphs_are_captured_runs() -> None:
    said = "(EngineCore_DP0 pid=44) "
    full = ("1.45 GiB", "44.39 GiB", "1.02 GiB", "43.36 GiB", "41.51 GiB", "0.35 GiB")
    assert found_in(said + modern(*full, pools="312.00 MiB")).cause is Cause.ENGINE_OVERCOMMIT
    assert found_in(said + modern(*full)).open_between == (Cause.REAL_NEED, Cause.ENGINE_OVERCOMMIT)


def test_scores_in_a_server_s_trial_run_are_told_and_no_trainer_s_batch() -> None:
    code = "attn_weights = torch.matmul(q, k.transpose(1, 2))"
    frames = "\n".join(
        f'  File "/x/vllm/v1/w.py", line 3, in {name}\n    {code}' for name in ("profile_run", "forward")
    )
    found = found_in("vllm serve x", f"Traceback (most recent call last):\n{frames}", FULL_CARD)
    assert found.term is not None
    assert (found.cause, found.term.path) == (Cause.REAL_NEED, "attention/scores")
    assert not any("batch" in cure.change or cure.where == "torch.utils.checkpoint" for cure in found.cures)


@pytest.mark.parametrize(
    ("said", "helps", "shape"),
    [
        ("optim: paged_adamw_8bit", NO, "[152064, 3584] uint8"),
        ("optim: adamw_torch", MAYBE, ""),
    ],
)
def test_states_in_eight_bits_are_made_no_smaller(said: str, helps: str, shape: str) -> None:
    message = modern("520.00 MiB", "23.64 GiB", "0.30 GiB", "23.30 GiB", "22.60 GiB", "0.11 GiB")
    found = found_in(said, "Qwen/Qwen2.5-7B", traced("step", "init_state"), message)
    assert [cure.helps for cure in found.cures if cure.change == "an optimizer with smaller states"] == [
        helps
    ]
    assert found.term is not None
    assert found.term.shape == shape


@pytest.mark.parametrize(("device", "host"), [("DGX Spark (GB10)", True), ("H100", False)])
def test_on_a_device_of_the_host_s_memory_the_host_is_who_holds_it(device: str, host: bool) -> None:
    found = found_in(
        modern("6.00 GiB", "119.64 GiB", "3.12 GiB", "71.02 GiB", "70.10 GiB", "0.12 GiB"), device
    )
    assert found.cause is Cause.OTHER_PROCESS
    assert ("the host's programs" in found.because) is host
    assert any("drop_caches" in cure.where for cure in found.cures) is host


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA driver error: out of memory",
        brackets("512.00 MiB", "23.70 GiB", "6.20 GiB", "11.69 MiB", "6.45 GiB"),
    ],
)
def test_where_another_process_may_be_it_is_looked_for(text: str) -> None:
    found = found_in(text)
    assert Cause.OTHER_PROCESS in found.open_between
    assert found.cures[0].where == "nvidia-smi"


def test_a_server_beside_a_trainer_is_no_graph_s_saving() -> None:
    message = modern("1.75 GiB", "79.15 GiB", "0.43 GiB", "78.72 GiB", "16.51 GiB", "0.21 GiB")
    graphs = [
        next(cure for cure in found_in(said, message).cures if "graphs" in cure.change)
        for said in ("actor_rollout_ref", "plain")
    ]
    assert [cure.saves_bytes is None for cure in graphs] == [True, False]


def test_a_state_that_is_made_in_a_step_is_told_by_its_line() -> None:
    code = "state['exp_avg'] = torch.zeros_like(p.data)"
    place = 'File "/x/deepspeed/ops/adam/fused_adam.py", line 3, in step'
    frame = f"Traceback (most recent call last):\n  {place}\n    {code}\n"
    message = modern("7.09 GiB", "79.15 GiB", "5.00 GiB", "74.10 GiB", "72.60 GiB", "0.90 GiB")
    found = found_in("Qwen/Qwen2.5-7B world_size 4 zero_stage 1", frame, message)
    assert found.term is not None
    assert (found.term.component, found.term.shape) == ("optimizer_states", "[1903904128] fp32")


@pytest.mark.parametrize(
    ("module", "component", "exact"),
    [("torch/optim/optimizer.py", "optimizer_states", True), ("pkg/code.py", "parameters", False)],
)
def test_what_a_checkpoint_holds_is_certain_of_an_optimizer_s_alone(
    module: str, component: str, exact: bool
) -> None:
    loads = traced("main", "load_state_dict", module=f"site-packages/{module}")
    message = modern("500.00 MiB", "23.64 GiB", "0.21 GiB", "23.40 GiB", "22.80 GiB", "0.01 GiB")
    term = found_in("NousResearch/Llama-2-7b-hf", loads, message).term
    assert term is not None
    assert (term.component, term.exact, term.shape) == (component, exact, "[32000, 4096] fp32")


def test_what_is_sent_in_buckets_is_no_weight_for_certain() -> None:
    message = modern("256.00 MiB", "79.15 GiB", "0.14 GiB", "79.01 GiB", "78.00 GiB", "0.02 GiB")
    term = found_in(
        "meta-llama/Llama-3.3-70B-Instruct", traced("__init__", "_sync_params_and_buffers"), message
    ).term
    assert term is not None
    assert (term.component, term.exact, term.shape) == ("communication", False, "")


def test_a_rank_s_gradients_are_as_many_as_it_counts() -> None:
    said = " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 8030261248"
    makes = traced("get_model", "__init__", module="megatron/core/distributed/param_and_grad_buffer.py")
    found = found_in(
        said, makes, modern("29.92 GiB", "39.39 GiB", "23.35 GiB", "16.04 GiB", "15.30 GiB", "0.03 GiB")
    )
    assert found.term is not None
    assert (found.term.component, found.term.shape) == ("gradients", "[8030261248] fp32")


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("per_device_train_batch_size=1", "half the length"),
        ("--micro-batch-size 1", "half the length"),
        ("Instantaneous batch size per device = 1", "half the length"),
        ("per_device_train_batch_size=2", "half the micro-batch or half the length"),
        ("per_device_eval_batch_size=1", "half the micro-batch or half the length"),
        ("", "half the micro-batch or half the length"),
    ],
)
def test_a_micro_batch_of_one_row_is_halved_by_its_length(said: str, change: str) -> None:
    cures = [cure.change for cure in found_in(said, traced("backward"), FULL_CARD).cures]
    assert [each.partition(":")[0] for each in cures if each.startswith("half")] == [change]


def test_a_server_that_sleeps_keeps_weights_in_a_pool() -> None:
    message = modern(
        "1.45 GiB", "44.39 GiB", "1.02 GiB", "43.36 GiB", "41.51 GiB", "0.35 GiB", pools="30.00 GiB"
    )
    found = found_in("enable_sleep_mode=True", f"(EngineCore_DP0 pid=44) {message}")
    assert found.open_between == (Cause.REAL_NEED, Cause.ENGINE_OVERCOMMIT)


@pytest.mark.parametrize(
    ("said", "reached", "cause"),
    [
        ("unfreeze_backbone_at_epoch=3", "Epoch 3:   0%|   | 0/1250", Cause.REGIME_CHANGE),
        ("unfreeze_backbone_at_epoch=3", "Epoch 3:  40%|   | 500/1250", Cause.REAL_NEED),
        ("unfreeze_backbone_at_epoch=3", "Epoch 2:   0%|   | 0/1250", Cause.REAL_NEED),
        ("freeze_encoder_epochs: 2", "Epoch 3/10", Cause.REGIME_CHANGE),
        ("--freeze-epochs 3", "Epoch 3: 0/100", Cause.REGIME_CHANGE),
        ("--freeze-epochs 3", "epoch 3 loss 1.2\nepoch 3 loss 1.1", Cause.REAL_NEED),
        ("we unfreeze the backbone at epoch 5", "Epoch 5: 0%| 0/100", Cause.REGIME_CHANGE),
        ("the encoder is frozen for the first 2 epochs", "Epoch 3/5", Cause.REGIME_CHANGE),
        ("unfrozen from step 1,000 on", "step 1000 loss 1.2", Cause.REGIME_CHANGE),
        ("unfrozen from step 1,000 on", "step 4000 loss 1.2", Cause.REAL_NEED),
        ("disc_start: 50001", "global_step=50001", Cause.REGIME_CHANGE),
        ("epochs: 5", "Epoch 5: 0%| 0/100", Cause.REAL_NEED),
    ],
)
def test_a_run_is_another_from_where_its_settings_say(said: str, reached: str, cause: Cause) -> None:
    assert found_in(said, reached, traced("backward"), FULL_CARD).cause is cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("_full_post_state_dict_hook", Cause.REGIME_CHANGE),
        ("save_fsdp_optimizer", Cause.REGIME_CHANGE),
        ("_zero3_consolidated_16bit_state_dict", Cause.REGIME_CHANGE),
        ("save_pretrained", Cause.REAL_NEED),
    ],
)
def test_shards_gathered_to_be_saved_are_of_a_training(name: str, cause: Cause) -> None:
    found = found_in(traced(name), FULL_CARD)
    assert found.cause is cause
    assert any("in shards" in cure.change for cure in found.cures)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("it trained fine for 500 steps", Cause.REGIME_CHANGE),
        ("after 2 epochs it saves and dies", Cause.REGIME_CHANGE),
        ("dies while it saves", Cause.REAL_NEED),
    ],
)
def test_people_say_that_steps_ran_before_a_save(said: str, cause: Cause) -> None:
    assert found_in(said, traced("save_pretrained"), FULL_CARD).cause is cause


def served(unit: str, *sizes: int) -> str:
    return "\n".join(
        f"INFO {unit} {n}000 done, torch.cuda.memory_allocated={size} MiB" for n, size in enumerate(sizes, 1)
    )


@pytest.mark.parametrize(
    "message", ["RuntimeError: CUDA error: out of memory", "RuntimeError: CUDA out of memory"]
)
@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (served("request", 6164, 7628, 9093, 10557, 12021), Cause.LEAK),
        (served("file", 6164, 7628, 9093, 10557, 12021), Cause.LEAK),
        (served("request", 6164, 6164, 6164, 6164, 6164), Cause.UNKNOWN),
        (served("request", 6164, 6165, 6166, 6167, 6168), Cause.UNKNOWN),  # which is next to nothing
    ],
)
def test_growth_speaks_for_a_message_without_figures(said: str, cause: Cause, message: str) -> None:
    assert found_in(said, message).cause is cause


KEPT = "for b in loader:\n    out = model(**b)\n    kept.append({})"


@pytest.mark.parametrize(
    ("kept", "said", "cause"),
    [
        ("out.hidden_states", "it dies on the 7th batch", Cause.LEAK),
        ("logits", "  3%|#  | 7/250 [00:01<00:40]", Cause.LEAK),
        ('{"logits": logits, "y": y}', "it dies on the 7th batch", Cause.LEAK),
        ("(logits, y)", "it dies on the 7th batch", Cause.LEAK),
        ('{"logits": logits.cpu(), "y": y}', "it dies on the 7th batch", Cause.REAL_NEED),
        ("out.logits.detach()", "after 40 images", Cause.LEAK),
        ("out.logits.cpu()", "it dies on the 7th batch", Cause.REAL_NEED),
        ("out.hidden_states", "it dies on the 1st batch", Cause.REAL_NEED),
        ("out.hidden_states", "batch 8 x 2048", Cause.REAL_NEED),
    ],
)
def test_outputs_kept_on_a_list_are_a_leak_where_several_batches_ran(
    kept: str, said: str, cause: Cause
) -> None:
    found = found_in(KEPT.format(kept), said, traced("forward"), FULL_CARD)
    assert found.cause is cause
    assert any("cpu()" in cure.where for cure in found.cures) is (cause is Cause.LEAK)


@pytest.mark.parametrize(
    ("last", "cause"), [(29441, Cause.REGIME_CHANGE), (8191, Cause.REAL_NEED), (11000, Cause.REAL_NEED)]
)
@pytest.mark.parametrize("mark", ["tokens=", "seq_len: ", "tokens in batch  ", "tokens ", "toks "])
def test_a_step_far_larger_than_all_before_it_is_another_regime(last: int, mark: str, cause: Cause) -> None:
    steps = "\n".join(f"step={n} {mark}{size} loss=1.2" for n, size in enumerate((8190, 7712, 8002, last)))
    found = found_in(steps, traced("backward"), FULL_CARD)
    assert found.cause is cause
    assert any("longest samples" in cure.change for cure in found.cures) is (cause is Cause.REGIME_CHANGE)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Fresh run: fine. Continue from checkpoint: OOM at the first backward", Cause.REGIME_CHANGE),
        ("it trains from scratch without problems and works, when I resume it dies", Cause.REGIME_CHANGE),
        ("trained from scratch, dies at step 3", Cause.REAL_NEED),
        ("I resume and it dies", Cause.REAL_NEED),
    ],
)
def test_a_run_that_dies_only_as_it_is_resumed_holds_its_checkpoint(said: str, cause: Cause) -> None:
    found = found_in(said, traced("backward"), FULL_CARD)
    assert found.cause is cause
    assert any("map_location" in cure.where for cure in found.cures) is (cause is Cause.REGIME_CHANGE)


@pytest.mark.parametrize(
    "line",
    [
        "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "DistBackendError: NCCL error in: x.cpp:133, remote process exited or there was a network error",
    ],
)
def test_an_end_that_happened_elsewhere_is_an_echo_unless_memory_ran_out_here(line: str) -> None:
    found = found_in(line)
    assert (found.cause, found.found) == (Cause.FOLLOW_UP_ERROR, True)
    assert ["first error" in cure.change for cure in found.cures] == [True]
    assert found_in(traced("backward"), FULL_CARD, line).cause is Cause.REAL_NEED


@pytest.mark.parametrize(
    ("said", "windows"),
    [
        ("Windows 11, 4090, page file off", True),
        ("on win10", True),
        ("Windows 11 with WSL2", False),
        ("I ssh from Windows 11 to the server", False),
        ("Ubuntu 22.04, before that Windows 11", False),
        ("windows of 11 frames", False),
    ],
)
def test_a_system_is_heard_where_people_name_it(said: str, windows: bool) -> None:
    room = modern("128.00 MiB", "23.99 GiB", "9.80 GiB", "14.19 GiB", "13.10 GiB", "194.56 MiB")
    changes = {cure.change for cure in found_in(said, room).cures}
    assert ("a larger page file" in changes) is windows


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("1800 steps ran, samples are usually 900-1100 tokens. At step 1807 came one of 16,384 tokens and it died:", Cause.REGIME_CHANGE),
        ("Обучение шло 1800 шагов, длина примеров обычно 900-1100 токенов. На шаге 1807 попался пример 16384 токена и всё упало:", Cause.REGIME_CHANGE),
        ("训练了 1800 步，样本一般是 1000 tokens。第 1807 步遇到一个 16384 tokens 的样本就爆了：", Cause.REGIME_CHANGE),
        ("1800 steps ran, samples are usually 900-1100 tokens. At step 1807 came one of 1,200 tokens and it died:", Cause.REAL_NEED),
        ("Samples are usually 1000 tokens and max_length is 16384 tokens, it died at step 3:", Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_a_sample_of_far_more_tokens_than_are_said_to_be_usual_is_another_regime(
    said: str, cause: Cause
) -> None:
    message = modern("9.28 GiB", "79.15 GiB", "4.40 GiB", "74.74 GiB", "72.11 GiB", "1.40 GiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("forward and backward of the first step run, it dies in optimizer.step():", Cause.REGIME_CHANGE),
        ("첫 번째 스텝의 forward/backward 는 잘 되는데 optimizer.step() 에서 죽습니다.", Cause.REGIME_CHANGE),
        ("the first 500 steps run, then it dies in optimizer.step():", Cause.REAL_NEED),
    ],
)
def test_a_first_update_is_heard_across_clauses(said: str, cause: Cause) -> None:
    message = modern("224.00 MiB", "47.53 GiB", "101.00 MiB", "47.42 GiB", "46.60 GiB", "88.00 MiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is cause


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("The evaluation before training starts (eval_on_start: true) dies:", Cause.REAL_NEED),
        ("Training runs fine for 500 steps, the evaluation dies:", Cause.REGIME_CHANGE),
    ],
)
def test_an_evaluation_before_the_first_step_is_no_change(said: str, cause: Cause) -> None:
    message = modern("9.28 GiB", "44.53 GiB", "6.10 GiB", "38.42 GiB", "37.00 GiB", "800.00 MiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is cause


def test_of_attempts_with_smaller_batches_the_last_says_what_is_short() -> None:
    first = "CUDA out of memory. Tried to allocate 2.40 GiB. GPU 0 has a total capacity of 23.69 GiB"
    last = modern("0.90 GiB", "23.69 GiB", "0.30 GiB", "23.38 GiB", "22.70 GiB", "180.00 MiB")
    found = diagnose_texts({"log": f"{first}\nDecreasing batch size to: 2\n{last}"})
    assert found.cause is Cause.REAL_NEED
    assert found.facts["asked_bytes"].high < 2**30


def test_the_last_row_of_a_table_may_end_before_its_figures() -> None:
    rows = "\n".join(f"| {900 + at} | {1200 + at} | 1.9 |" for at in range(5))
    message = modern("4.42 GiB", "47.53 GiB", "2.20 GiB", "45.32 GiB", "43.60 GiB", "800.00 MiB")
    text = f"| step | seq_len | loss |\n|---|---|---|\n{rows}\n| 905 | 7801 |    |\n{message}"
    assert diagnose_texts({"log": text}).cause is Cause.REGIME_CHANGE


PINS = 'File "x/accelerator/cuda_accelerator.py", line 307, in pin_memory\n    return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory'  # fmt: skip


@pytest.mark.parametrize(
    ("held", "cause"),
    [("0.31", Cause.NOT_GPU_MEMORY), ("0.0", Cause.UNKNOWN), ("", Cause.UNKNOWN)],
)
def test_who_has_its_place_on_the_card_was_refused_the_host_s_pages(held: str, cause: Cause) -> None:
    line = f"MA {held} GB         Max_MA {held} GB         CA {held} GB         Max_CA 0 GB\n" if held else ""
    assert diagnose_texts({"log": f"{line}Traceback (most recent call last):\n{PINS}"}).cause is cause


@pytest.mark.parametrize(
    ("lengths", "cause"),
    [
        ((911, 1204, 7936), Cause.REGIME_CHANGE),
        ((911, 1204, 1888), Cause.REAL_NEED),
        ((911, 1204, 1100, 1888), Cause.REGIME_CHANGE),
    ],
)
def test_the_longest_of_a_batch_is_read_from_a_trainer_s_lines(
    lengths: tuple[int, ...], cause: Cause
) -> None:
    *before, last = (f"'max_len_in_batch': {each}" for each in lengths)
    lines = "\n".join(f"{{'loss': 1.1, 'epoch': 0.39, {each}}}" for each in before)
    bar = f"  13%|█▎        | 812/6240 [22:51<2:32:40]  {last}".replace("'", "")
    message = modern("5.81 GiB", "39.39 GiB", "5.29 GiB", "34.10 GiB", "33.20 GiB", "307.20 MiB")
    assert diagnose_texts({"log": f"{lines}\n{bar}\n{message}"}).cause is cause


def test_sessions_that_are_kept_are_let_go_of() -> None:
    message = modern("64.00 MiB", "39.39 GiB", "41.76 MiB", "39.35 GiB", "38.03 GiB", "429.28 MiB")
    rows = "\n".join(f"requests={500 * at} gpu mem allocated={15 + 3 * at}.31GiB" for at in range(8))
    said = f"{rows}\n{message}\nSESSIONS[sid] = out.past_key_values"
    found = diagnose_texts({"log": said})
    assert found.cause is Cause.LEAK
    assert "sessions" in found.cures[0].change
