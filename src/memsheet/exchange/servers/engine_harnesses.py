"""Benchmarks and evaluations that start an engine themselves and not a server: each as the server of the same
flags. Read as text, never run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memsheet.exchange.servers.ray_serve import engine_flag
from memsheet.exchange.shared.evaluation_words import model_arguments
from memsheet.exchange.shared.launched_script import ENDS, WRITES, filled_commands
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.exchange.shared.serve_pods import starts_a_server
from memsheet.frozen import dataclass
from memsheet.guard.budget import is_long_script
from memsheet.patterns import late_pattern

MOST_STARTED = 16
_STARTS = late_pattern(r"bench|lm[_-]eval|lighteval")
OF_SERVER = (
    "the sheet is of a server's defaults: vLLM's LLM class takes twice the tokens a step, or more, unasked"
)
"""16,384 for 8,192, and 8,192 for 2,048 on cards below 70 GiB (vllm engine/arg_utils.py,
get_batch_defaults).
"""
OF_RUNNER = "the benchmark runs one batch without a scheduler, from the same pool"
"""SGLang's own runner, with its server's arguments (sgl-project/sglang 0094415 bench_one_batch.py,
load_model).
"""
_DATASET = """
backend dataset dataset-name dataset-path input-len output-len n num-prompts hf-max-batch-size output-json lora-path prefix-len
random-range-ratio random-input-len random-output-len random-prefix-len hf-subset hf-split hf-name hf-output-len num-warmups
prefix-repetition-prefix-len prefix-repetition-suffix-len prefix-repetition-num-prefixes prefix-repetition-output-len
async-engine disable-frontend-multiprocessing disable-detokenize profile skip-warmup
"""
_BATCH = """
input-len output-len batch-size n num-iters-warmup num-iters output-json use-beam-search profile disable-detokenize
"""
_OFFLINE = """
backend result-filename dataset-name dataset-path num-prompts sharegpt-output-len sharegpt-context-len random-input-len random-output-len
random-range-ratio gen-num-groups gen-prompts-per-group gen-system-prompt-len gen-question-len gen-output-len disable-ignore-eos
extra-request-body seed skip-warmup do-not-exit profile apply-chat-template prompt-suffix
"""
_ONE_BATCH = """
run-name batch-size input-len output-len prompt-filename result-filename correctness-test correct cut-len log-decode-step profile
profile-record-shapes profile-activities profile-stage profile-prefix profile-filename-prefix profile-start-step profile-steps
"""


@dataclass(frozen=True, slots=True)
class Harness:
    """A benchmark: the words that start it, its engine's server, flags of its own, and what is told of it."""

    name: str
    starts: tuple[tuple[str, ...], ...]
    server: str
    own: frozenset[str]
    remark: str
    engines: tuple[str, ...]  # values of its --backend that are the engine


HARNESSES = (
    Harness("bench throughput", (("vllm", "bench", "throughput"), ("benchmark_throughput.py",), ("-m", "vllm.benchmarks.throughput")), "vllm serve", frozenset(_DATASET.split()), OF_SERVER, ("vllm", "vllm-chat")),
    Harness("bench latency", (("vllm", "bench", "latency"), ("benchmark_latency.py",), ("-m", "vllm.benchmarks.latency")), "vllm serve", frozenset(_BATCH.split()), OF_SERVER, ()),
    Harness("bench_offline_throughput", (("-m", "sglang.bench_offline_throughput"),), "python -m sglang.launch_server", frozenset(_OFFLINE.split()), "", ("engine", "runtime")),
    Harness("bench_one_batch", (("-m", "sglang.bench_one_batch"), ("-m", "sglang.bench_latency")), "python -m sglang.launch_server", frozenset(_ONE_BATCH.split()), OF_RUNNER, ()),
)  # fmt: skip
"""vllm-project/vllm vllm/benchmarks/{throughput.py, latency.py}, add_cli_args; sgl-project/sglang
python/sglang/{bench_offline_throughput.py, bench_one_batch.py}, BenchArgs.
"""
OF_FORKS = ("--zero-inference-config",)
"""Flags of changed engines that keep weights off the card (deepspeedai/DeepSpeedExamples 45b4b71
inference/sglang/run_llama3_8B.sh): what the engine makes of them is not known.
"""
LEAST_PREFIX = 6
"""Letters of a flag that its parser completes."""
NAMED_ALIKE = {"max_length": "max_model_len", "max_model_length": "max_model_len", "max_batch_size": "max_num_seqs", "model_parallel_size": "tensor_parallel_size"}  # fmt: skip
_OF_EVALUATION = """
batch_size max_gen_toks add_bos_token prefix_token_id truncation_side think_end_token
enable_thinking chat_template_args device swap_space add_special_tokens
multichoice_continuations_start_space pairwise_tokenization use_chat_template is_async
generation_parameters subfolder system_prompt cache_dir override_chat_template backend parallelize
"""
OF_EVALUATION = frozenset(_OF_EVALUATION.split())
"""Arguments of the evaluations themselves (EleutherAI/lm-evaluation-harness 4e7e0d4
lm_eval/models/vllm_causallms.py:63-92; huggingface/lighteval 0178e9a
src/lighteval/models/vllm/vllm_model.py).
"""
UNASKED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("lm_eval", "vllm"): {"dtype": "auto", "tensor_parallel_size": 1},
    ("lm_eval", "sglang"): {"dtype": "auto", "tp_size": 1, "chunked_prefill_size": -1},
    ("lighteval", "vllm"): {"dtype": "bfloat16", "gpu_memory_utilization": 0.9, "max_num_seqs": 128, "max_num_batched_tokens": 2048},
}  # fmt: skip
"""What they give the engine where nothing is said (vllm_causallms.py:66-74; sglang_causallms.py:52-62;
vllm_model.py, VLLMModelConfig).
"""
SERVERS = {"vllm": ("vllm", "serve"), "sglang": ("python", "-m", "sglang.launch_server", "--model-path")}


def harness_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """The engines that a script's benchmarks and evaluations start; none of a script that starts a server."""
    del parse
    if name.endswith((".py", ".json", ".yaml", ".yml", ".toml")) or is_long_script(text):
        return []
    if not _STARTS.search(text) or starts_a_server(text):
        return []
    found: dict[str, NamedServer] = {}
    for words in filled_commands(plain_script(text).text):
        for server in (*_benched_engine(words), *_evaluated_engine(words)):
            found.setdefault(server.script, server)
    return list(found.values())[:MOST_STARTED]


def _benched_engine(words: Sequence[str]) -> Iterator[NamedServer]:
    for harness in HARNESSES:
        at = next((end for start in harness.starts if (end := _end_of_start(words, start))), None)
        if at is None:
            continue
        kept, own = _split_flags(list(_until_output(words[at:])), harness.own)
        named = any(word.partition("=")[0] in ("--model", "--model-path", "--model_path") for word in kept)
        changed = any(word.partition("=")[0] in OF_FORKS for word in kept)
        if named and not changed and own.get("backend", "") in ("", *harness.engines):
            remarks = (f"{harness.name}: {harness.remark}",) if harness.remark else ()
            script = " ".join([harness.server, *map(_shell_text, kept)])
            yield NamedServer(harness.name, script, remarks=remarks)


def _end_of_start(words: Sequence[str], start: tuple[str, ...]) -> int | None:
    """Where the flags of a program begin."""
    for at in range(len(words) - len(start) + 1):
        first = words[at].rpartition("/")[2]
        if (first, *words[at + 1 : at + len(start)]) == start:
            return at + len(start)
    return None


def _until_output(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word in ENDS or word.startswith(WRITES):
            return
        yield word


def _split_flags(words: Sequence[str], own: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """Words without the flags of a benchmark's own; and these with their first words."""
    kept: list[str] = []
    taken: dict[str, str] = {}
    inside = ""
    for word in words:
        if word.startswith("--"):
            flag, _, value = word[2:].replace("_", "-").partition("=")
            inside = _own_name(flag, own)
            if inside:
                taken[inside] = value
            else:
                kept.append(word)
        elif inside:
            taken[inside] = taken[inside] or word
        else:
            kept.append(word)
    return kept, taken


def _own_name(flag: str, own: frozenset[str]) -> str:
    """A flag of the benchmark's own by its whole name, or by letters that its parser completes."""
    if flag in own:
        return flag
    begun = sorted(name for name in own if len(flag) >= LEAST_PREFIX and name.startswith(f"{flag}-"))
    return begun[0] if len(begun) == 1 else ""


def _evaluated_engine(words: Sequence[str]) -> Iterator[NamedServer]:
    told = model_arguments(words)
    if told is None or told.engine not in SERVERS:
        return
    usual = UNASKED.get((told.program, told.engine), {})
    given = {NAMED_ALIKE.get(at, at): held for at, held in told.arguments.items() if at not in OF_EVALUATION}
    arguments = {**usual, **given}
    if "lora_local_path" in arguments:
        arguments |= {"enable_lora": True, "max_lora_rank": arguments.get("max_lora_rank", 16)}
        del arguments["lora_local_path"]
    flags = [word for at, held in arguments.items() for word in engine_flag(at, held)]
    script = " ".join([*SERVERS[told.engine], _shell_text(told.model), *map(_shell_text, flags)])
    taken = ", ".join(f"{at} = {held}" for at, held in usual.items() if at not in given)
    remarks = (f"{taken} ({told.program}'s own default)",) if taken else ()
    counted = told.engine != "vllm" or "max_num_batched_tokens" in arguments
    more = () if counted else (f"{told.program}: {OF_SERVER}",)
    yield NamedServer(told.program, script, remarks=(*remarks, *more))


def _shell_text(word: str) -> str:
    """A word as a shell has it; a variable in it stays one."""
    return f'"{word}"' if "$" in word and not set(word) & set('"`\\ ') else shlex.quote(word)
