"""Cures lie on the side that helps, and are of what ran."""

from __future__ import annotations

import re

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, brackets, modern, traced

from laws import every
from memsheet.diagnose.cures.tables import FUSED_LOSS
from memsheet.diagnose.message import MAYBE, NO, YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
LONG = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (10.11 GiB). Based on the "
    "available memory, the estimated maximum model length is 82816. Try increasing it"
)
SAMPLER = "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
NO_ROOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
GRAPHS = f"Exception: Capture cuda graph failed: {FULL_CARD}"
LOADED = "Load weight end. type=X, avail mem={} GB, mem usage={} GB."


def cures_of_text(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def offered(found: Diagnosis) -> str:
    return "\n".join(f"{cure.change} | {cure.where}" for cure in found.cures if cure.helps != NO)


SHARE = re.compile(r"(?:utilization|mem-fraction-static)(?: ([\d.]+))?$", re.MULTILINE)


@every("stated", ["0.5", "0.8", "0.9", "0.95", "0.96", "0.97", "0.99"])
@every(
    "says",
    ["{{'model': 'x', 'gpu_memory_utilization': {}}}", "vllm serve x --gpu-memory-utilization {} --port 1", "ServerArgs(mem_fraction_static={}, tp_size=1)",
     "--mem-fraction-static={}"],
)  # fmt: skip
def test_a_share_lies_beyond_the_one_that_is_stated(says: str, stated: str) -> None:
    line, server = says.format(stated), "fraction" in says
    larger = [SHARE.findall(offered(cures_of_text(line, NO_ROOM if server else NO_CACHE)))]
    smaller = SHARE.findall(offered(cures_of_text(line, GRAPHS if server else SAMPLER)))
    assert all(float(stated) < float(each) <= 0.97 for said in larger for each in said)
    assert all(said for said in larger) == (float(stated) < 0.97)
    assert [float(each) < float(stated) for each in smaller] == [True]


@pytest.mark.parametrize(
    ("card", "stated", "lacking", "helps"),
    [
        ("L4", "0.5", "1.37", "--gpu-memory-utilization 0.57"),
        ("L4", "0.9", "1.37", "--gpu-memory-utilization 0.97"),
        ("L4", "0.92", "1.37", None),  # of which the rest of the card is less
        ("A100", "0.92", "1.37", "--gpu-memory-utilization 0.97"),
    ],
)
def test_a_larger_share_adds_what_is_lacking(card: str, stated: str, lacking: str, helps: str | None) -> None:
    said = f"{card} --gpu-memory-utilization {stated}"
    found = cures_of_text(said, f"Available KV cache memory: -{lacking} GiB", NO_CACHE)
    share = next(cure for cure in found.cures if "larger share" in cure.change)
    assert (share.helps, share.where) == ((MAYBE, helps) if helps else (NO, "--gpu-memory-utilization"))
    assert lacking in share.why


@pytest.mark.parametrize(("stated", "helps"), [("0.9", NO), ("0.6", MAYBE)])
def test_a_larger_share_holds_no_request_that_the_card_does_not(stated: str, helps: str) -> None:
    found = cures_of_text(f"RTX A6000 --gpu-memory-utilization {stated}", LONG)
    assert [cure.helps for cure in found.cures if "larger share" in cure.change] == [helps]


@pytest.mark.parametrize("text", [NO_CACHE, LONG, SAMPLER, NO_ROOM, GRAPHS])
def test_where_no_share_is_stated_no_number_is_said(text: str) -> None:
    assert SHARE.findall(offered(cures_of_text(text))) == [""]


@pytest.mark.parametrize(
    ("left", "used", "said"), [("3.10", "75.20", ["0.97"]), ("20.00", "60.00", ["0.87"]), ("0.50", "78", [])]
)
def test_a_share_by_what_weights_left(left: str, used: str, said: list[str]) -> None:
    assert SHARE.findall(offered(cures_of_text(LOADED.format(left, used), NO_ROOM))) == said


def test_other_numbers_lie_beyond_theirs_too() -> None:
    assert "--cuda-graph-max-bs 4" in offered(cures_of_text("ServerArgs(cuda_graph_max_bs=8)", GRAPHS))
    blocks = offered(cures_of_text("config: tensor_parallel_size=4, max_num_batched_tokens=1024", NO_CACHE))
    assert "--tensor-parallel-size 8" in blocks
    assert "--max-num-batched-tokens 512" in blocks


def test_fewer_tokens_than_are_computed_at_once() -> None:
    refused = (
        "allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed"
    )
    assert "-ub 32" in offered(cures_of_text("llama_context: n_ubatch      = 64", refused))


TRAINING = ("micro-batch", "train_batch", "recompute", "gradient_checkpointing")
TRAINER = "/x/transformers/trainer.py"
SHORT = modern("3.91 GiB", "79.11 GiB", "1.20 GiB", "77.90 GiB", "74.00 GiB", "2.10 GiB")


@pytest.mark.parametrize(
    ("lines", "helping", "useless"),
    [
        (
            ("evaluate", "evaluation_loop", "forward"),
            ("per_device_eval_batch_size", "eval_accumulation_steps"),
            (),
        ),
        (
            ("train", "_inner_training_loop", "evaluate", "prediction_step"),
            ("per_device_eval_batch_size",),
            (),
        ),
        (
            ("evaluate", "evaluation_loop", "nested_concat", "torch_pad_and_concatenate"),
            ("eval_accumulation_steps", "preprocess_logits_for_metrics"),
            ("a smaller batch of the evaluation",),
        ),
        (
            ("main", "generate", "_sample", "forward", "update"),
            ("fewer sequences", "offloaded"),
            ("recompute activations in backward",),
        ),
        (
            ("train", "training_step", "generate", "forward"),
            ("fewer sequences",),
            ("recompute activations in backward",),
        ),
    ],
)
def test_what_is_no_training_gets_no_training_s_cures(
    lines: tuple[str, ...], helping: tuple[str, ...], useless: tuple[str, ...]
) -> None:
    found = cures_of_text(f"in {TRAINER}", traced(*lines), SHORT)
    assert [word for word in TRAINING if word in offered(found)] == []
    assert [word for word in helping if word not in offered(found)] == []
    assert {cure.change for cure in found.cures if cure.helps == NO} >= set(useless)


def test_predictions_put_together_in_a_source_line() -> None:
    trace = f'File "{TRAINER}", line 3, in evaluation_loop\n    all_preds = nested_concat(all_preds, logits)'
    assert "preprocess_logits_for_metrics" in offered(cures_of_text(trace, SHORT))


def test_a_step_of_training_keeps_its_own() -> None:
    found = cures_of_text(f"in {TRAINER}", traced("train", "training_step", "forward"), SHORT)
    assert "per_device_train_batch_size" in offered(found)


@pytest.mark.parametrize(
    ("before", "helping"),
    [
        ("INFO [gpu_model_runner.py:1600] Starting to load model x/y...", "--tensor-parallel-size"),
        ("Load weight begin. avail mem=78.50 GB", "--tp"),
        (
            "Starting to load model x/y...\nModel loading took 14.0 GiB",
            "--max-num-seqs",
        ),
    ],
)
def test_a_server_that_loads_and_one_that_runs(before: str, helping: str) -> None:
    found = cures_of_text(before, SHORT)
    assert [word for word in TRAINING if word in offered(found)] == []
    assert helping in offered(found)


def test_a_trainer_beside_a_server_is_no_server() -> None:
    found = cures_of_text("vllm.entrypoints ready", f"in {TRAINER}", traced("train", "training_step"), SHORT)
    assert "recompute" in offered(found)


OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 1.12 GiB (GPU 0; 11.17 GiB total capacity; "
    "8.90 GiB already allocated; 500.81 MiB free; 1.20 GiB cached)"
)
BEFORE_2_1 = brackets("1.12 GiB", "11.17 GiB", "8.90 GiB", "500.81 MiB", "10.10 GiB")


@pytest.mark.parametrize(("text", "splits"), [(OLD, False), (BEFORE_2_1, True)])
def test_an_old_release_is_told_what_it_has(text: str, splits: bool) -> None:
    found = cures_of_text(text)
    assert found.cause is Cause.FRAGMENTATION
    (expandable,) = (cure for cure in found.cures if cure.change == "expandable segments")
    assert (expandable.helps, "2.1" in expandable.why, "2.1" in expandable.where) == (MAYBE, True, True)
    assert ("max_split_size_mb" in offered(found)) is splits


def test_a_new_release_is_told_nothing_of_releases() -> None:
    found = cures_of_text(modern("1.12 GiB", "11.17 GiB", "0.50 GiB", "10.60 GiB", "8.90 GiB", "1.20 GiB"))
    assert [cure for cure in found.cures if "2.1" in cure.why] == []


@pytest.mark.parametrize(
    ("who", "conf", "cleared"),
    [
        ("HIP", "PYTORCH_HIP_ALLOC_CONF=", "torch.cuda.empty_cache()"),
        ("XPU", "PYTORCH_ALLOC_CONF=", "torch.xpu.empty_cache()"),
        ("NPU", "PYTORCH_NPU_ALLOC_CONF=", "torch.npu.empty_cache()"),
    ],
)
def test_a_device_is_told_its_own_names(who: str, conf: str, cleared: str) -> None:
    found = cures_of_text(
        modern("2.00 GiB", "79.15 GiB", "1.00 GiB", "78.00 GiB", "50.00 GiB", "27.50 GiB", who=who)
    )
    assert found.cause is Cause.FRAGMENTATION
    assert {cure.where.partition("expandable")[0] for cure in found.cures if "expandable" in cure.where} == {
        conf
    }
    assert cleared in {cure.change for cure in found.cures}
    assert ("max_split_size_mb" in offered(found)) == (who != "XPU")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            (
                "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks "
                "have been OOM Killed."
            ),
            "#SBATCH --mem=",
        ),
        (
            "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\nLimits:\n  memory: 32Gi\n",
            "resources.limits.memory",
        ),
    ],
)
def test_who_killed_is_told_where_its_limit_stands(text: str, where: str) -> None:
    found = cures_of_text(text)
    assert found.cause is Cause.NOT_GPU_MEMORY
    assert where in offered(found)
    assert ("32Gi" in found.because) == ("32Gi" in text)


def test_what_says_more_than_a_signal_speaks() -> None:
    ray = (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
        "memory.\nMemory on the node was 478.11GB / 503.00GB (0.95)"
    )
    assert "478.11 GiB of 503.00 GiB" in cures_of_text("killed by SIGKILL", ray).because
    kernel = (
        "python invoked oom-killer: order=0\nMemory cgroup out of memory: Killed process 31337 "
        "(python) total-vm:2kB, anon-rss:66912340kB"
    )
    assert "process 31337 with 63.81 GiB" in cures_of_text(kernel).because


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("from trl import SFTConfig", 'optim="adamw_8bit"'), ("axolotl train", "optimizer: adamw_bnb_8bit"),
        ("/deepspeed/runtime/engine.py", "offload_optimizer"), ("actor_rollout_ref.actor", "optimizer_offload=True"), ("python a.py", "AdamW8bit"),
    ],
)  # fmt: skip
def test_states_are_told_in_the_trainer_s_words(lines: str, where: str) -> None:
    assert where in offered(cures_of_text(lines, traced("step", "_init_group"), FULL_CARD))


def test_saving_within_a_training_is_another_regime_and_gets_no_training_s_cures() -> None:
    found = cures_of_text(
        "step 1000 | saving", traced("save_checkpoint", "all_gather_into_tensor"), FULL_CARD
    )
    assert found.cause is Cause.REGIME_CHANGE
    assert "SHARDED_STATE_DICT" in offered(found)
    assert "micro-batch" not in offered(found)
    alone = cures_of_text(traced("evaluation_loop", "forward"), FULL_CARD)
    assert alone.cause is Cause.REAL_NEED
    within = cures_of_text(
        "{'loss': 0.9, 'learning_rate': 1e-05}", traced("evaluation_loop", "forward"), FULL_CARD
    )
    assert within.cause is Cause.REGIME_CHANGE


CHUNKS = "site-packages/liger_kernel/chunked_loss/fused_linear_ppo.py"


@pytest.mark.parametrize(
    ("said", "module", "first", "no"),
    [
        ("GRPOConfig(use_liger_loss=True)", CHUNKS, "half the length: the loss takes one sequence at a time", True),
        ("GRPOConfig()", CHUNKS, "half the length: the loss takes one sequence at a time", True),
        ("enable_liger_kernel: true", "site-packages/torch/nn/functional.py", "half the micro-batch or half the length", True),
        ("enable_liger_kernel: false", "site-packages/torch/nn/functional.py", "half the micro-batch or half the length", False),
    ],
)  # fmt: skip
def test_a_loss_that_is_on_is_no_cure(said: str, module: str, first: str, no: bool) -> None:
    trace = traced("compute_loss", "log_softmax", module=module)
    text = f"{said}\nQwen/Qwen2.5-7B max_length=8192\n{trace}\n" + modern(
        "4.64 GiB", "79.18 GiB", "2.40 GiB", "76.77 GiB", "75.20 GiB", "512.00 MiB"
    )
    found = diagnose_texts({"log": text})
    assert found.term is not None
    assert found.term.shape == "[8192, 152064] fp32"
    assert [cure.change for cure in found.cures if cure.helps == YES] == [first]
    assert any(cure.change == FUSED_LOSS and cure.helps == NO for cure in found.cures) is no


def test_such_a_loss_makes_the_output_projections_gradient() -> None:
    text = traced("forward", module=CHUNKS) + "\nQwen/Qwen2.5-7B bf16 max_length=8192\n" + modern(
        "1.02 GiB", "79.18 GiB", "0.10 GiB", "79.07 GiB", "75.20 GiB", "512.00 MiB"
    )  # fmt: skip
    term = diagnose_texts({"log": text}).term
    assert term is not None
    assert (term.component, term.shape) == ("gradients", "[152064, 3584] bf16")


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("AUTOMATIC1111 webui", "--opt-sdp-attention (or --xformers)"),
        ("timm train.py --no-fused-attn", "TIMM_FUSED_ATTN=1 (and no --no-fused-attn)"),
        ("transformers 4.57", 'attn_implementation="sdpa"'),
        ("my own model", "torch.nn.functional.scaled_dot_product_attention"),
    ],
)
def test_attention_without_scores_is_told_in_the_words_of_whose_code_it_is(said: str, where: str) -> None:
    frame = '  File "model.py", line 7, in forward\n    attn = attn.softmax(dim=-1)'
    found = cures_of_text(
        said, frame, modern("1.91 GiB", "23.64 GiB", "1.04 GiB", "22.60 GiB", "22.02 GiB", "143.52 MiB")
    )
    assert [cure.where for cure in found.cures if "writes no scores" in cure.change] == [where]


@pytest.mark.parametrize(
    ("module", "fused"),
    [("site-packages/trl/trainer/dpo_trainer.py", True), ("site-packages/other/dpo.py", False)],
)
def test_a_trainer_of_preferences_has_a_loss_of_its_own_that_holds_no_logits(
    module: str, fused: bool
) -> None:
    found = cures_of_text(traced("get_batch_logps", module=module), FULL_CARD)
    assert any("use_liger_loss" in cure.where for cure in found.cures) is fused
    assert any(cure.change == "a loss in chunks" for cure in found.cures) is not fused


@pytest.mark.parametrize(
    ("shape", "scores"),
    [("f32[16,12,4096,4096]", True), ("f32[16,2048,128256]", False), ("f32[64,3,224,224]", False)],
)
def test_a_program_whose_largest_buffer_is_scores_is_told_to_write_none(shape: str, scores: bool) -> None:
    asked = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 26521423052 bytes.\npreallocated temp allocation: 24.70GiB\n"  # fmt: skip
    found = cures_of_text(f"{asked}Peak buffers:\n Buffer 1:\n Size: 12.00GiB\n Shape: {shape}")
    assert any("writes no scores" in cure.change for cure in found.cures) is scores


@pytest.mark.parametrize(
    ("config", "helps"),
    [
        ("dtype=torch.bfloat16, tensor_parallel_size=1", NO), ("dtype=torch.bfloat16, tensor_parallel_size=8", MAYBE),
        ("dtype=torch.bfloat16, quantization=awq", MAYBE), ("", MAYBE),
    ],
)  # fmt: skip
def test_a_share_that_does_not_hold_the_weights_is_no_cure(config: str, helps: str) -> None:
    found = cures_of_text(
        f"model='google/gemma-3-27b-it', {config}",
        "ValueError: Free memory on device (7.92/79.11 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    )  # fmt: skip
    assert [cure.helps for cure in found.cures if "share that is free" in cure.change] == [helps]


SCORES_WRITTEN = "num_attention_heads=32, batch 4, seq 8192\n" + traced("forward", "eager_attention_forward")


def test_what_makes_no_such_tensor_stands_before_a_smaller_job() -> None:
    """Half the batch is certain to serve the request, and costs speed; without the scores there is none."""
    text = SCORES_WRITTEN + modern(
        "16.00 GiB", "79.25 GiB", "10.02 GiB", "69.22 GiB", "66.80 GiB", "1.30 GiB"
    )
    first, second, *_ = diagnose_texts({"log": text}).cures
    assert first.change.startswith("attention that writes no scores")
    assert second.helps == YES


@pytest.mark.parametrize("line", [
    'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-70B-Instruct").to("cuda")', "net = Net().cuda()", "model.to(device)",
])  # fmt: skip
def test_a_script_that_ends_where_it_loads_needs_room_for_weights(line: str) -> None:
    message = modern("448.00 MiB", "79.25 GiB", "320.00 MiB", "78.92 GiB", "78.40 GiB", "12.00 MiB")
    found = diagnose_texts({"log": f"import torch\n{line}\n{message}"})
    assert not any("batch" in cure.change for cure in found.cures if cure.helps != NO)
    later = diagnose_texts({"log": f"{line}\nloss = model(x).mean()\n{message}"})
    assert any("batch" in cure.change for cure in later.cures if cure.helps != NO)


SMI_OF_ANOTHER = """| NVIDIA-SMI 550.90.07   Driver Version: 550.90.07   CUDA Version: 12.4 |
| N/A   41C    P0             118W /  400W |   {used}MiB /  81559MiB |      0%      Default |
|    0   N/A  N/A    1183402      C   VLLM::EngineCore                           {used}MiB |
"""


@pytest.mark.parametrize(
    ("used", "cause"), [(64306, Cause.OTHER_PROCESS), (2048, Cause.ENGINE_UNDERPROVISION)]
)
def test_a_card_that_another_held_before_weights_were_loaded_is_no_small_share(
    used: int, cause: Cause
) -> None:
    left = (81559 - used) / 1024 - 0.44
    lines = (
        f"Load weight begin. avail mem={left:.2f} GB\n"
        f"Load weight end. elapsed=8 s, avail mem={left - 15.05:.2f} GB, mem usage=15.05 GB.\n"
    )
    found = diagnose_texts({"log": SMI_OF_ANOTHER.format(used=used) + lines + NO_ROOM})
    assert found.cause is cause


@pytest.mark.parametrize(
    "call", ['[rollout pid=2] wake_up(tags=["weights"])', "INFO: POST /resume_memory_occupation"]
)
def test_a_server_that_was_just_told_to_wake_races_for_its_memory(call: str) -> None:
    message = modern(
        "14.25 GiB",
        "79.11 GiB",
        "31.05 GiB",
        "1.06 GiB",
        "0.50 GiB",
        "10.00 MiB",
        others=((4411, "46.93 GiB"),),
    )
    assert diagnose_texts({"log": f"offload: start\n{call}\n{message}"}).cause is Cause.WAKE_UP_RACE
    apart = "\n".join((call, *("step loss 1.0",) * 4, message))
    assert diagnose_texts({"log": apart}).cause is not Cause.WAKE_UP_RACE


CARD_OF_WEIGHTS = modern("172.00 MiB", "14.75 GiB", "111.51 MiB", "14.63 GiB", "13.98 GiB", "20.00 MiB")


@pytest.mark.parametrize(
    ("line", "sixteen"),
    [
        ('model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf").to("cuda")', 'from_pretrained(…, torch_dtype="auto")'),
        ('model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf", torch_dtype=torch.float16).to("cuda")', None),
    ],
)  # fmt: skip
def test_weights_of_four_bytes_are_first_read_as_two(line: str, sixteen: str | None) -> None:
    found = diagnose_texts(
        {"log": f"{line}\n{traced('convert', module='torch/nn/modules/module.py')}{CARD_OF_WEIGHTS}"}
    )
    assert (found.cures[0].change == "weights in 16 bits") is (sixteen is not None)
    assert sixteen is None or found.cures[0].where == sixteen


def test_the_model_of_another_library_in_this_process_is_named() -> None:
    lines = "load_tensors:        CUDA0 model buffer size =  8148.38 MiB\n"
    message = modern("512.00 MiB", "23.53 GiB", "280.64 MiB", "23.26 GiB", "11.63 GiB", "88.00 MiB")
    found = diagnose_texts({"log": lines + message})
    assert found.cause is Cause.OUTSIDE_ALLOCATOR
    assert "n_gpu_layers" in found.cures[0].where


UPDATES = (
    "The backward of the first batch goes through, but optimizer.step() of the very first step dies:",
    "With accumulation 8 the micro steps run fine, the crash comes at the first weight update (AdamW).",
    "前向和反向都没问题，第一次 optimizer.step() 时就 OOM：",
)


@pytest.mark.parametrize("words", UPDATES)
def test_states_are_what_a_first_update_lacks_room_for(words: str) -> None:
    message = modern("500.00 MiB", "39.39 GiB", "202.00 MiB", "39.18 GiB", "38.40 GiB", "120.00 MiB")
    found = diagnose_texts({"log": f"{words}\n{message}"})
    assert found.term is not None
    assert found.term.component == "optimizer_states"
    assert found.cause is Cause.REGIME_CHANGE
    assert not any("batch" in cure.change for cure in found.cures if cure.helps != NO)


@pytest.mark.parametrize(
    ("function", "cause"),
    [("_init_group", Cause.REGIME_CHANGE), ("initialize_optimizer_states", Cause.REAL_NEED)],
)
def test_states_that_are_made_before_any_step_change_none(function: str, cause: Cause) -> None:
    message = modern("96.00 MiB", "47.53 GiB", "49.80 MiB", "47.48 GiB", "46.80 GiB", "27.00 MiB")
    found = diagnose_texts({"log": traced("step", function) + message})
    assert found.cause is cause
    assert found.missing is not None
    assert found.missing.low > 0


def test_pictures_that_are_decoded_are_first_decoded_in_tiles() -> None:
    text = traced("decode", module="ComfyUI/comfy/sd.py") + modern(
        "9.00 GiB", "15.99 GiB", "6.20 GiB", "9.78 GiB", "9.10 GiB", "201.00 MiB"
    )
    assert diagnose_texts({"log": text}).cures[0].change == "pictures decoded in tiles"
