"""What others build on: the public names, and the flags of every command. A change here is a decision, not an accident."""

import memsheet
from memsheet.cli.commands import COMMANDS
from memsheet.cli.line import spellings

NAMES = [
    "Answer",
    "Component",
    "DoesNotFitError",
    "InputError",
    "Instant",
    "Item",
    "Result",
    "Sheet",
    "Verdict",
    "assert_fits",
    "compare",
    "explain",
    "export",
    "infer",
    "measure",
    "measure_step",
    "plan",
    "plan_serving",
    "solve",
    "textbook",
    "trace",
    "trace_step",
    "train",
    "trainer_callback",
    "verify",
]

PLAN_FLAGS = [
    "--attention", "--attn-dp", "--compile", "--context-parallel-comm", "--cp", "--cuda-graphs", "--dp-dense", "--dp-lm-head", "--dp-replicate", "--dp-shard", "--dropout", "--engine",
    "--engine-version", "--ep", "--etp", "--expert-dispatch", "--expandable-segments", "--global-batch", "--gpu-layers", "--host-experts", "--mla-mode", "--attn-max-batch", "--image-tokens", "--k-dtype", "--kv-dtype", "--layers-per-stage", "--lora-rank",
    "--lora-dtype", "--lora-targets", "--loss", "--max-batched-tokens", "--max-cpu-loras", "--max-loras", "--fully-sharded-loras", "--no-fully-sharded-loras", "--max-model-len", "--memory-fraction", "--microbatch", "--moe-balanced", "--moe-capacity-factor", "--moe-dispatch", "--moe-pad-to-capacity", "--no-compile",
    "--no-cuda-graphs", "--no-dp-dense", "--no-dp-lm-head", "--no-moe-balanced", "--no-moe-pad-to-capacity", "--no-expandable-segments", "--no-optimizer-in-backward", "--no-reshard-after-forward", "--no-sequence-parallel",
    "--offload", "--optimizer", "--optimizer-implementation", "--optimizer-in-backward", "--output-tokens", "--page-tokens", "--pp",
    "--precision", "--prompt-tokens", "--shared-prefix-tokens", "--quantize", "--recompute", "--recompute-every", "--recompute-layers", "--recompute-modules",
    "--recompute-segments", "--reshard-after-forward", "--schedule", "--seq-len", "--sequence-parallel", "--sequences", "--state-ratio", "--state-slots", "--tp",
    "--vocab-multiple", "--vpp", "--zero", "--speculative", "--draft-model", "--speculative-tokens", "--draft-tp",
]  # fmt: skip
SERVE_FLAGS = ["--any-precision", "--context", "--tpot", "--ttft", "--users"]
JOB_FLAGS = [
    "--cluster",
    "--debug",
    "--full",
    "--gpus",
    "--host-memory",
    "--json",
    "--nodes",
    "--parameters",
    "--per-node",
    "--plan",
    "--units",
]
TRACE_FLAGS = [
    "--all-stages", "--cache", "--device", "--events", "--memory-limit", "--no-scratch", "--picture", "--rank", "--scratch", "--snapshot",
    "--time-limit",
]  # fmt: skip
MEASURE_FLAGS = [
    "--data", "--device", "--events", "--memory-limit", "--record", "--snapshot", "--steps", "--time-limit", "--vary-length",
]  # fmt: skip
SOLVE_FLAGS = ["--model", "--most", "--picture"]
FLAGS = {
    "train": sorted(PLAN_FLAGS + JOB_FLAGS),
    "infer": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--lengths"]),
    "plan": sorted([*PLAN_FLAGS, *JOB_FLAGS, *SERVE_FLAGS, "--axes", "--cells", "--method", "--picture", "--show", "--tokens", "--top"]),
    "solve": sorted(PLAN_FLAGS + JOB_FLAGS + SOLVE_FLAGS),
    "trace": sorted(PLAN_FLAGS + JOB_FLAGS + TRACE_FLAGS),
    "measure": sorted(PLAN_FLAGS + JOB_FLAGS + MEASURE_FLAGS),
    "verify": [
        "--debug",
        "--device",
        "--full",
        "--json",
        "--memory-limit",
        "--model",
        "--operations",
        "--per-node",
        "--processes",
        "--records",
        "--slurm",
        "--steps",
        "--time-limit",
        "--units",
    ],
    "calibrate": ["--debug", "--forget", "--from", "--gpus", "--json"],
    "check": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--each", "--model"]),
    "export": ["--debug", "--force", "--out", "--pick", "--to"],
    "compare": ["--debug", "--full", "--instant", "--json", "--rank", "--units"],
    "explain": ["--debug", "--json"],
    "models": ["--debug", "--json"],
    "gpus": ["--debug", "--json"],
}


def flags_of(command: str) -> list[str]:
    return sorted(name for flag in COMMANDS[command].flags for name, _ in spellings(flag))


def test_public_names():
    assert sorted(memsheet.__all__) == NAMES


def test_commands():
    assert sorted(COMMANDS) == sorted(FLAGS)


def test_flags():
    assert {command: flags_of(command) for command in FLAGS} == FLAGS
