"""What each command takes: its arguments, its flags, and the lines that its help shows. One row a command."""

from __future__ import annotations

from memsheet.cli import flags as groups
from memsheet.cli.flags import (
    DEBUG,
    FORMAT,
    FULL,
    JOB_FLAGS,
    JSON,
    OUTPUT_FLAGS,
    PLAN_FLAGS,
    UNITS,
    WORD_FLAGS,
    Flag,
)
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.plan.option_words import JOB, SERVING

with late_functions(__name__):
    from memsheet.jobs.templates import template_options


class Argument(NamedTuple):
    """What stands on the line without a flag."""

    name: str
    metavar: str
    words: str
    required: bool = False
    many: bool = False


class Command(NamedTuple):
    """One command of the line; its code is the function of its name in the module of its name."""

    name: str
    words: str
    arguments: tuple[Argument, ...]
    own_flags: tuple[Flag, ...]
    examples: tuple[str, ...]
    often: tuple[str, ...] = ()
    """Flags that ``--help`` shows; without any it shows all."""
    more: str = ""
    program: str = ""
    """Whose own flags stand behind ``--``, where the command starts another program."""
    behind: str = ""
    """What the words behind ``--`` are called, where they are no arguments like those before it."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """All of them, those of the templates of jobs too."""
        return (*template_flags(), *self.own_flags) if self.name == "job" else self.own_flags


MODEL = Argument(
    "model",
    "MODEL",
    "A bundled name (llama-3-70b), a config.json or its folder, a .gguf or .safetensors file, or a hub id.",
)
COMMON = (
    "gpus",
    "engine",
    "zero",
    "tp",
    "pp",
    "seq-len",
    "microbatch",
    "global-batch",
    "precision",
    "optimizer",
)
LIGHTER = ("lora-rank", "quantize", "recompute", "offload")
SERVED = ("max-model-len", "sequences", "kv-dtype", "quantize", "memory-fraction")
PRINTED = ("plan", "json", "full")

LENGTHS_FLAGS = (
    Flag(
        "lengths",
        SERVING,
        "FILE",
        "A file of requests, tokens of the prompt and of the answer a line: 1200,300.",
    ),
)
SOLVE_FLAGS = (
    Flag("most", groups.SOLVE, "N", "How far to look: tokens, sequences or GPUs."),
    Flag("model", groups.SOLVE, "NAME", "The family that `solve parameters` scales.", key="family"),
    Flag("picture", groups.SOLVE, "FILE", "Of `solve parameters`: size against GPUs, as .svg or .png."),
)
SEARCH_FLAGS = (
    Flag(
        "method",
        groups.SEARCH,
        "NAME",
        "full, lora or qlora; without one full, or what --lora-rank or a library says.",
    ),
    Flag("top", groups.SEARCH, "N", "How many plans to show."),
    Flag("tokens", groups.SEARCH, "COUNT", "Tokens to train on, 15e12: what they cost."),
)
SERVE_FLAGS = (
    Flag("context", groups.SERVE, "TOKENS", "Of infer: tokens of each user's sequence at its longest."),
    Flag("users", groups.SERVE, "N", "Of infer: users at once."),
    Flag("ttft", groups.SERVE, "TIME", "Of infer: time to the first token: 500ms."),
    Flag("tpot", groups.SERVE, "TIME", "Of infer: time between tokens: 50ms."),
    Flag("any-precision", groups.SERVE, "", "Of infer: weights and caches in eight bits too.", default=False),
)
PICTURE_FLAGS = (
    Flag(
        "show",
        groups.PICTURES,
        "KIND",
        "front: memory against time; heat: what fits over two axes; waterfall: the way from the naive run.",
    ),
    Flag("picture", groups.PICTURES, "FILE", "Into an .svg or .png file; without it on the terminal."),
    Flag(
        "axes",
        groups.PICTURES,
        "X,Y",
        (
            "Of heat: two of seq_len, gpus, microbatch, tp, pp, zero …: seq_len,microbatch; "
            "seq_len=4096:8192,tp."
        ),
    ),
    Flag(
        "cells",
        groups.PICTURES,
        "WHICH",
        "Of heat: the plan that needs least, or the fastest that fits: least, fastest.",
    ),
)
REDACT = Flag(
    "redact", groups.OUTPUT, "", "Without folders, and names of people and machines.", default=False
)
WATCH_FLAGS = (
    Flag("interval", groups.OTHER, "TIME", "Between two lines.", default="2s"),
    Flag("count", groups.OTHER, "N", "Lines after which it ends, the command or not."),
)
TRACE_FLAGS = (
    Flag("device", groups.TRACE, "cuda|cpu", "cuda as on a GPU (none is needed), or cpu.", default="cuda"),
    Flag(
        "scratch",
        groups.TRACE,
        "",
        "Count what CUDA kernels allocate inside an operation.",
        default=True,
        negative=True,
    ),
    Flag(
        "full",
        groups.TRACE,
        "",
        "Run every layer, not one of a kind; show every item.",
        default=False,
    ),
    Flag(
        "cache",
        groups.TRACE,
        "dynamic|static|quantized",
        "Which cache generates: as --kv-dtype asks without it.",
    ),
    Flag("rank", groups.TRACE, "N", "The rank that is traced.", default="0"),
    Flag("all-stages", groups.TRACE, "", "Trace a rank of each pipeline stage.", default=False),
    Flag("picture", groups.TRACE, "FILE", "Memory over the step, as .svg or .png."),
    Flag("events", groups.TRACE, "FILE", "Every allocation and release (memsheet/events/1)."),
    Flag("snapshot", groups.TRACE, "FILE", "The same for PyTorch's viewer and `diagnose`."),
    Flag(
        "capacity",
        groups.TRACE,
        "SIZE",
        "Memory of the snapshot's allocator: 24GiB.",
    ),
    Flag("memory-limit", groups.TRACE, "SIZE", "Real memory that the trace may take.", default="4GiB"),
    Flag("time-limit", groups.TRACE, "S", "Seconds that it may take.", default="600"),
    Flag("fresh", groups.TRACE, "", "Run it even where the same was traced before.", default=False),
)
MEASURE_FLAGS = (
    Flag("device", groups.MEASURE, "cpu|cuda", "This machine's processor, or its GPU.", default="cpu"),
    Flag("steps", groups.MEASURE, "N", "Steps that are timed: 5, or 20 of varied lengths."),
    Flag(
        "vary-length",
        groups.MEASURE,
        "",
        "Vary the length from step to step, and watch what is reserved.",
        default=False,
    ),
    Flag("data", groups.MEASURE, "FILE", "A text file to train on, its bytes as tokens; else random ones."),
    Flag("record", groups.MEASURE, "FILE", "Write a record (memsheet/record/1)."),
    Flag(
        "events",
        groups.MEASURE,
        "FILE",
        "Every allocation and release (memsheet/events/1; .gz is compressed).",
    ),
    Flag("snapshot", groups.MEASURE, "FILE", "The GPU allocator's own history of two steps, as JSON."),
    Flag("memory-limit", groups.MEASURE, "SIZE", "Memory that it may take (what is free, 64GiB at most)."),
    Flag("time-limit", groups.MEASURE, "S", "Seconds that it may take.", default="600"),
)
VERIFY_FLAGS = (
    Flag("model", groups.OTHER, "NAME", "The model, where the plan names none."),
    Flag("device", groups.OTHER, "cpu|cuda", "This machine's processor, or its GPUs.", default="cpu"),
    Flag("processes", groups.OTHER, "N", "Ranks that run at once on this machine (2).", default="2"),
    Flag("steps", groups.OTHER, "N", "Steps that are timed on each rung (1).", default="1"),
    Flag(
        "operations",
        groups.OTHER,
        "N",
        "Floating-point operations that a processor's step may take (3e12).",
        default="3e12",
    ),
    Flag("slurm", groups.OTHER, "PARTITION", "Run the whole plan too, on nodes of this Slurm partition."),
    Flag("per-node", groups.OTHER, "N", "GPUs of one of its nodes (8).", default="8"),
    Flag(
        "memory-limit",
        groups.OTHER,
        "SIZE",
        "Memory that each process may take (what is free, 64GiB at most).",
    ),
    Flag("time-limit", groups.OTHER, "S", "Seconds that each run may take.", default="600"),
    Flag(
        "records", groups.OTHER, "DIR", "Folder for a record of each real run (records).", default="records"
    ),
)
METAVARS = {int: "N", float: "SHARE", str: "NAME", bool: ""}


def template_flags() -> tuple[Flag, ...]:
    """Options of the templates of ``jobs.templates``, by the frameworks' own words."""
    return tuple(
        Flag(
            name.replace("_", "-"),
            groups.TEMPLATE,
            METAVARS[option.kind],
            option.words,
            negative=option.kind is bool,
        )
        for name, option in template_options().items()
    )


CALIBRATE_FLAGS = (
    Flag(
        "from",
        groups.OTHER,
        "RECORD",
        "A record of a measured training step; a second one tells more apart.",
        key="records",
        many=True,
    ),
    Flag(
        "gpus",
        groups.OTHER,
        "NxDEVICE",
        "The device it ran on, where the record's name of it is not in the catalogue.",
    ),
    Flag(
        "forget",
        groups.OTHER,
        "",
        "Remove what is kept of the device and engine of the record.",
        default=False,
    ),
)
EXPORT_FLAGS = (
    Flag("to", groups.OTHER, "NAME,…", "Formats: deepspeed, accelerate, transformers, trl, axolotl, llamafactory, swift, unsloth, torchtune, verl, "
         "megatron, torchtitan, torchrun, slurm, skypilot, kubernetes, trainjob, vllm, helm, sglang, tensorrt-llm, llama.cpp, ollama.", required=True),
    Flag("out", groups.OTHER, "DIR", "The folder that the files are written into, made if it is not there."),
    Flag("pick", groups.OTHER, "N", "Which plan of several (1)."),
    Flag("force", groups.OTHER, "", "Write over files that are there.", default=False),
)  # fmt: skip
COMPARE_FLAGS = (
    Flag("instant", groups.OTHER, "NAME", "Compare at this instant; without it, each sheet at its peak."),
    Flag("rank", groups.OTHER, "N", "Compare this rank only."),
    FULL._replace(words="Every row, with what is inside a module apart."),
)
WEB_FLAGS = (
    Flag("host", groups.OTHER, "ADDRESS", "The address that is listened on.", default="127.0.0.1"),
    Flag("port", groups.OTHER, "N", "The port; 0 picks a free one.", default="8630"),
    Flag("workers", groups.OTHER, "N", "Processes that answer.", default="1"),
    Flag(
        "allowed-host",
        groups.OTHER,
        "NAME",
        "A name or address that others reach it by, where it is listened on for them.",
        key="hosts",
        many=True,
    ),
    Flag("open", groups.OTHER, "", "Open it in the browser.", default=False),
    Flag(
        "check",
        groups.OTHER,
        "",
        "Start, ask one question, end: exit code 0 where all is well.",
        default=False,
    ),
)
SBATCH_FLAGS = (
    *(flag for flag in JOB_FLAGS if flag.name in ("gpus", "host-memory")),
    Flag("anyway", groups.OTHER, "", "Submit it unchecked.", default=False),
)
"""What a script leaves open and changes nothing that runs."""
SKILL_FLAGS = (Flag("install", groups.OTHER, "DIR", "Write it into DIR/memsheet."),)
CHECK_FLAGS = (
    Flag("model", JOB, "MODEL", "The model that is trained, as for train."),
    Flag("each", groups.OTHER, "", "Each file by itself; the exit code is the worst.", default=False),
    Flag(
        "against",
        groups.OTHER,
        "REF",
        "What changed since REF: a file, or a git revision.",
    ),
)


def _job_flags(*own: Flag) -> tuple[Flag, ...]:
    """The flags of a job with a command's ``own``, and others' words for them where none of these has that
    name.
    """
    flags = (*JOB_FLAGS, *PLAN_FLAGS, *own)
    named = {flag.name for flag in flags}
    return (*flags, *(flag for flag in WORD_FLAGS if flag.name not in named))


START = (
    "memsheet train llama-3.1-8b --gpus 8xH100-80GB --seq-len 8192",
    "memsheet infer llama-3.1-70b --gpus 8xH200 --engine vllm --max-model-len 32768",
    "memsheet plan train llama-3.1-70b --gpus 512xH100-80GB --seq-len 8192 --global-batch 1024",
    "memsheet check run/",
)
"""A few lines to begin with."""

COMMANDS = {command.name: command for command in (
    Command(
        "train", "Does this training job fit, and what takes the room?", (MODEL,), _job_flags(FORMAT, *OUTPUT_FLAGS),
        ("memsheet train llama-3.1-8b --gpus 8xH100-80GB --engine fsdp2 --zero 3 --seq-len 8192 --recompute full",
         "memsheet train llama-3.1-8b --gpus 1xRTX4090 --lora-rank 16 --quantize nf4 --seq-len 4096",
         "memsheet train mixtral-8x7b --gpus 64xH100-80GB --engine megatron --tp 2 --pp 4 --ep 8 --seq-len 4096",
         "memsheet train --parameters 7e9 --gpus 8xA100-80GB --engine deepspeed --precision bf16-master --zero 2"),
        (*COMMON, *LIGHTER, "attention", "parameters", *PRINTED),
    ),
    Command(
        "infer", "Does this model serve, and how much cache is left?", (MODEL,), _job_flags(*LENGTHS_FLAGS, FORMAT, *OUTPUT_FLAGS),
        ("memsheet infer llama-3.1-70b --gpus 8xH200 --engine vllm --tp 8 --max-model-len 32768",
         "memsheet infer llama-3.1-8b --gpus 1xRTX4090 --engine llama.cpp --quantize gguf:Q4_K_M --max-model-len 8k",
         "memsheet infer llama-3.1-8b --gpus 1xL4 --max-model-len 4096 --sequences 8"),
        ("gpus", "engine", "tp", *SERVED, "prompt-tokens", "output-tokens", "lengths", *PRINTED),
    ),
    Command(
        "plan", "The fastest plans that fit, of every legal one, and why the others do not.",
        (Argument("task", "TASK", "train or infer", required=True), MODEL),
        _job_flags(*SEARCH_FLAGS, *SERVE_FLAGS, *PICTURE_FLAGS, FORMAT, *OUTPUT_FLAGS),
        ("memsheet plan train llama-3.1-70b --gpus 512xH100-80GB --seq-len 8192 --global-batch 1024",
         "memsheet plan train llama-3.1-8b --gpus 1xRTX4090 --seq-len 2048 --global-batch 16 --method qlora",
         "memsheet plan infer llama-3.1-70b --gpus 8xH100-80GB --context 8192 --users 200 --tpot 50ms"),
        ("gpus", "engine", "seq-len", "global-batch", "method", "top", "tokens", "context", "users", "ttft", "tpot", "show", "picture", *PRINTED),
        more="What a flag says is kept as it is; what none says is searched.",
    ),
    Command(
        "solve", "The longest sequence, largest micro-batch, fewest GPUs or largest model that fits.",
        (Argument("what", "WHAT", "seq-len, microbatch, gpus, parameters, sequences, max-model-len; of a job gpu-memory-utilization, row-tokens, micro-batch-tokens.", required=True), MODEL),
        _job_flags(*SOLVE_FLAGS, FORMAT, *OUTPUT_FLAGS),
        ("memsheet solve seq-len llama-3.1-8b --gpus 8xH100-80GB --engine fsdp2 --zero 3 --recompute full",
         "memsheet solve gpu-memory-utilization job.json",
         "memsheet solve sequences llama-3.1-8b --gpus 1xH100-80GB --engine vllm --max-model-len 8192"),
        (*COMMON, *LIGHTER, "most", *PRINTED),
    ),
    Command(
        "export", "A plan as the configuration of its engine.",
        (Argument("plan", "PLAN", "A file of memsheet/plan/1, /plans/1 or /sheet/1, or - for stdin.", required=True),),
        (*EXPORT_FLAGS, DEBUG),
        ("memsheet plan train llama-3.1-8b --gpus 8xH100-80GB --seq-len 4096 --global-batch 64 --json > plans.json",
         "memsheet export plans.json --to deepspeed,accelerate,torchrun --out run/"),
    ),
    Command(
        "check", "A configuration file of an engine: its sheet, its verdict, its mistakes.",
        (Argument("files", "FILE|DIR", "Files of one job or their folder; - for stdin; or behind -- a command.", many=True),),
        _job_flags(*CHECK_FLAGS, FORMAT._replace(words="As json, markdown, html, csv, svg, sarif or github."), *OUTPUT_FLAGS),
        ("memsheet check run/",
         "memsheet check ds_config.json --model llama-3.1-8b --gpus 8xA100-80GB --seq-len 4096",
         "memsheet check --gpus 2xL40S -- vllm serve Qwen/Qwen3-8B -tp 2",
         "memsheet check run.sh --against main"),
        ("model", "each", "against", "format", *COMMON, *LIGHTER, *PRINTED),
        more="A flag says what the files leave open.",
        program="the command",
        behind="command",
    ),
    Command(
        "sbatch", "A batch script checked as Slurm would run it, and submitted unless it is sure not to fit.",
        (Argument("line", "SCRIPT", "The script and its arguments; behind -- sbatch's own line, options first.", many=True),),
        (CHECK_FLAGS[0], *SBATCH_FLAGS, FULL, UNITS, DEBUG),
        ("memsheet sbatch job.sbatch",
         "memsheet sbatch --gpus 16xH100-80GB -- --nodes 2 --partition long job.sbatch config.yaml"),
        more="The screen of check goes to stderr, and stdout is sbatch's. Exit code: that of sbatch; 10 does not fit, 2 not read, and then nothing is submitted.",
        program="sbatch",
    ),
    Command(
        "diagnose", "What did a job that died of memory die of, and what would have helped? From its message, its log or a snapshot of its memory.",
        (Argument("files", "FILE", "A log, an error message (typed in quotation marks, too), an nvidia-smi table, a memory snapshot; several of one job, or - for stdin.", many=True),),
        _job_flags(CHECK_FLAGS[0], REDACT, JSON, FULL._replace(words="Every figure that was read."), UNITS, DEBUG),
        ("memsheet diagnose train.log",
         "memsheet diagnose snapshot.pickle",
         "memsheet diagnose train.log --model llama-3.1-8b --gpus 8xA100-80GB --seq-len 4096",
         "memsheet diagnose -"),
        ("model", *COMMON, *LIGHTER, *PRINTED),
        more="With the model and the plan the sheet says which term it was. Exit code: 0 diagnosed, or nothing to diagnose; 11 undecided; 2 unreadable.",
    ),
    Command(
        "watch", "What does a running job take of its cards, how does that grow, and when are they full? By nvidia-smi.",
        (Argument("job", "PID|COMMAND", "A process that runs here, or -- and a command to start.", many=True),),
        (*WATCH_FLAGS, UNITS, DEBUG),
        ("memsheet watch 4711", "memsheet watch --interval 10s -- python train.py"),
        more="Exit code: that of the command; 2 where there is no GPU.",
        program="the command",
    ),
    Command(
        "job", "Several models on the same cards (RL, preference, distillation): which phase needs most, and does every one fit?",
        (Argument("job", "JOB", "A file of memsheet/job/1, or a template: trl-grpo. Launches of verl, OpenRLHF and others: memsheet check.", required=True),),
        (*JOB_FLAGS[:5], FORMAT._replace(words="On stdout as json or csv."), JSON, UNITS, DEBUG),
        ("memsheet job trl-grpo --model Qwen/Qwen3-4B --gpus 1xH100-80GB",
         "memsheet job job.json --gpus 8xH100-80GB --json"),
    ),
    Command(
        "trace", "What does the real code allocate? Run on fake tensors, no GPU.",
        (MODEL._replace(words=f"{MODEL.words} Or a step of your own: FILE.py:FUNCTION."),), _job_flags(*TRACE_FLAGS, JSON, UNITS, DEBUG),
        ("memsheet trace llama-3.2-1b --seq-len 4096 --picture step.svg",
         "memsheet trace llama-3.1-8b --engine fsdp2 --zero 3 --gpus 8xH100-80GB --seq-len 2048",
         "memsheet trace step.py:build"),
        ("gpus", "engine", "zero", "tp", "pp", "seq-len", "microbatch", "precision", "recompute", *(flag.name for flag in TRACE_FLAGS), "plan", "json"),
    ),
    Command(
        "measure", "What does a real step allocate on this machine?",
        (MODEL._replace(words=f"{MODEL.words} Or a step of your own: FILE.py:FUNCTION."),),
        _job_flags(*MEASURE_FLAGS, JSON, FULL._replace(words="Every item."), UNITS, DEBUG),
        ("memsheet measure llama-tiny --seq-len 512",
         "memsheet measure llama-tiny --engine fsdp2 --dp-shard 2 --seq-len 512",
         "memsheet measure gpt2 --seq-len 256 --record run.json"),
        ("engine", "zero", "dp-shard", "tp", "pp", "seq-len", "microbatch", "precision", "recompute", *(flag.name for flag in MEASURE_FLAGS), *PRINTED),
    ),
    Command(
        "verify", "Predicted, traced and measured side by side: a plan run as far as this machine can.",
        (Argument("plan", "PLAN", "A file of memsheet/plan/1 for training, or - for stdin.", required=True),),
        (*VERIFY_FLAGS, JSON, FULL._replace(words="Every instant of every rank."), UNITS, DEBUG),
        ("memsheet verify plan.json",
         "memsheet verify plan.json --model llama-tiny --processes 2",
         "memsheet verify plan.json --slurm gpu --per-node 8"),
    ),
    Command(
        "web", "The page: every question by clicking, in the browser, on this machine.", (), (*WEB_FLAGS, DEBUG),
        ("memsheet web --open", "memsheet web --port 0 --check"),
    ),
    Command(
        "mcp", "The questions as tools of the Model Context Protocol, for agents, on stdin and stdout.", (), (DEBUG,),
        ("memsheet mcp",),
    ),
    Command(
        "skill", "What an agent has to know to ask memsheet: printed, or installed where its program looks for skills.", (), (*SKILL_FLAGS, DEBUG),
        ("memsheet skill", "memsheet skill --install .claude/skills"),
    ),
    Command(
        "completion", "What bash, zsh and fish read to complete a line.",
        (Argument("shell", "SHELL", "bash, zsh or fish.", required=True),), (DEBUG,),
        ("memsheet completion bash > ~/.local/share/bash-completion/completions/memsheet", "memsheet completion fish > ~/.config/fish/completions/memsheet.fish"),
    ),
    Command(
        "calibrate", "Scale step times by a measured one, from now on, for its device and engine.", (), (*CALIBRATE_FLAGS, JSON, DEBUG),
        ("memsheet measure llama-3.2-1b --device cuda --seq-len 2048 --record run.json",
         "memsheet calibrate --from run.json",
         "memsheet calibrate --from run.json --forget"),
    ),
    Command(
        "compare", "Two sheets side by side, the largest difference first.",
        (Argument("left", "A.json", "A sheet that `memsheet train|infer|trace|measure --json` printed, a record, or - for stdin.", required=True),
         Argument("right", "B.json", "The sheet to compare with it.", required=True)),
        (*COMPARE_FLAGS, FORMAT._replace(words="On stdout as json, markdown, html or csv."), JSON, UNITS, DEBUG),
        ("memsheet compare a.json b.json",
         "memsheet train llama-tiny --seq-len 128 --json | memsheet compare a.json -"),
    ),
    Command(
        "explain", "What a word on a sheet means, with its source.",
        (Argument("term", "TERM", "A component, an instant, a word, an engine, a formula; without one, what can be explained."),),
        (JSON, DEBUG),
        ("memsheet explain saved_activations", "memsheet explain zero", "memsheet explain"),
    ),
    Command(
        "models", "The bundled models, with exact parameter counts and where their configurations come from.",
        (Argument("words", "WORD", "Only models of which each word is in a name or the family; or one name in any form.", many=True),), (JSON, DEBUG),
        ("memsheet models", "memsheet models qwen 8b", "memsheet models unsloth/Qwen3-8B-bnb-4bit"),
    ),
    Command(
        "gpus", "The devices memsheet knows, and what a framework gets of each.",
        (Argument("filter", "FILTER", "Only names or kinds that contain it, with their links: rtx50, laptop, H100."),),
        (FULL._replace(words="Every device."), JSON, DEBUG),
        ("memsheet gpus", "memsheet gpus rtx", "memsheet gpus h100"),
    ),
)}  # fmt: skip
