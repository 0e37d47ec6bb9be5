"""A ``llama-server`` command in a script: ``bash llama-server.sh --port 8080``. Flags of ggml-org/llama.cpp
00dc8057, tools/server/README.md, a table that llama-gen-docs writes from common/arg.cpp.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared.file_format import EVERYTHING, Format, Key, Moved, Values, is_key
from memsheet.exchange.shared.gguf_names import (
    CACHE,
    OF_THE_FILE,
    cache_dtype_of,
    gguf_file_types,
    gguf_model_name,
    plan_file_name,
)
from memsheet.exchange.shared.serve_command import Command
from memsheet.patterns import late_pattern
from memsheet.plan.tensor_rules import tensor_rules

VERSION = "llama.cpp 00dc8057"
TABLE = "tools/server/README.md, Common params"
SERVER = "tools/server/README.md, Server-specific params"
EVERY_LAYER = 10_000
AUTO_SLOTS, SLOTS = "auto, 4 slots that share one cache", 4
"""What llama-server takes without --parallel (ggml-org/llama.cpp 00dd0816 tools/server/server.cpp: n_parallel
below 0 is 4 with kv_unified, whatever --no-kv-unified says; the default since pull request 16736 of November
2025). llama-cli has one (``ONE_SLOT``).
"""
ONE_SLOT = late_pattern(r"(?:^|[\s/])llama-cli(?:\s|$)")
PROJECTOR, OWN_PROJECTOR = "--mmproj-auto", frozenset({"--mmproj", "--mmproj-url"})
"""On unless it is off: with a repository's model comes its projector, onto the GPU (common/arg.cpp)."""
UNSET_VALUES = {"--ctx-size": (None, 0), "--n-gpu-layers": (None, "auto", -1)}
"""Flags that ``--fit`` may lower, with the values that leave them to it."""
DRAFT = frozenset({"--model-draft", "--hf-repo-draft"})
OF_DRAFT = DRAFT | {
    f"--{name}"
    for name in (
        "spec-draft-ngl", "ctx-size-draft", "spec-draft-device", "spec-draft-type-k", "spec-draft-type-v", "override-tensor-draft", "cpu-moe-draft",
        "n-cpu-moe-draft", "spec-replace",
    )
}  # fmt: skip
WHOLE_DRAFT: Mapping[str, tuple[Any, ...]] = {
    "--spec-draft-ngl": ("auto", "all", *range(99, 1000)), "--spec-draft-type-k": ("f16",), "--spec-draft-type-v": ("f16",), "--ctx-size-draft": (0,),
    "--n-cpu-moe-draft": (0,),
}  # fmt: skip
"""With the values that the sheet is of: all layers on the cards, a cache in fp16 as long as the model's."""
OFF_CARDS = frozenset({"--spec-draft-ngl", "--cpu-moe-draft", "--n-cpu-moe-draft"})
"""Flags that take a part of the draft off the cards."""
DRAFTED = "--spec-draft-n-max"
"""A second model that drafts, and where it lies: weights, a cache and a compute buffer of its own."""
_NAMED_ALIKE = (
    "model", "model-url", "docker-repo", "hf-repo", "hf-file", "ctx-size", "swa-full", "flash-attn", "kv-offload", "no-host", "cache-type-k", "cache-type-v",
    "rpc", "lazy-mode", "device", "override-tensor", "cpu-moe", "n-cpu-moe", "moe-cache-mib", "n-cpu-ffn", "n-gpu-layers", "split-mode", "tensor-split",
    "main-gpu", "fit", "fit-target", "fit-ctx", "kv-unified", "kv-unified-per-slot", "pooling", "mmproj", "mmproj-url", "mmproj-auto", "mmproj-offload",
    "image-min-tokens", "image-max-tokens", "mtmd-batch-max-tokens", "models-dir", "models-preset", "models-max", "backend-sampling", "spec-type",
)  # fmt: skip
VARIABLES = {f"LLAMA_ARG_{name.upper().replace('-', '_')}": f"--{name}" for name in _NAMED_ALIKE} | {
    "LLAMA_ARG_BATCH": "--batch-size", "LLAMA_ARG_UBATCH": "--ubatch-size", "LLAMA_ARG_N_PARALLEL": "--parallel", "LLAMA_ARG_EMBEDDINGS": "--embedding",
    "LLAMA_ARG_RERANKING": "--rerank", "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft", "LLAMA_ARG_MODEL_DRAFT": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--hf-repo-draft", "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "--spec-draft-ngl",
}  # fmt: skip
"""Variables for flags, which go before them (tools/server/README.md, "env:"); those of the processor and the
server itself are not looked for.
"""
HOW = Command(
    model="--model", package="llama.cpp", image="ghcr.io/ggml-org/llama.cpp", partition="", dashed=False,
    launches=(("llama-server",), ("llama-cli",)),
    aliases={
        "-m": "--model", "-mu": "--model-url", "-hf": "--hf-repo", "-hfr": "--hf-repo", "-hff": "--hf-file", "-c": "--ctx-size", "-np": "--parallel",
        "-b": "--batch-size", "-ub": "--ubatch-size", "-ngl": "--n-gpu-layers", "--gpu-layers": "--n-gpu-layers", "-fa": "--flash-attn",
        "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-ncmoe": "--n-cpu-moe", "-cmoe": "--cpu-moe", "-ot": "--override-tensor",
        "-sm": "--split-mode", "-ts": "--tensor-split", "-mg": "--main-gpu", "-dev": "--device", "-fit": "--fit", "-fitc": "--fit-ctx", "-fitt": "--fit-target",
        "-md": "--model-draft", "--spec-draft-model": "--model-draft", "-hfd": "--hf-repo-draft", "-mm": "--mmproj", "-mmu": "--mmproj-url",
        "-nkvo": "--no-kv-offload", "-kvu": "--kv-unified", "-t": "--threads", "-tb": "--threads-batch", "-n": "--predict", "--n-predict": "--predict",
        "-a": "--alias", "-cb": "--cont-batching", "-nocb": "--no-cont-batching", "-s": "--seed", "-dt": "--defrag-thold", "-lm": "--load-mode",
        "-lzm": "--lazy-mode", "-ctxcp": "--ctx-checkpoints", "--swa-checkpoints": "--ctx-checkpoints", "-cram": "--cache-ram", "-p": "--prompt",
        "-v": "--verbose", "-lv": "--verbosity", "--temperature": "--temp", "-to": "--timeout", "-rea": "--reasoning", "-ncffn": "--n-cpu-ffn",
        "-cnv": "--conversation", "-i": "--interactive", "-e": "--escape", "--embeddings": "--embedding", "--reranking": "--rerank",
        "-ngld": "--spec-draft-ngl", "--gpu-layers-draft": "--spec-draft-ngl", "--n-gpu-layers-draft": "--spec-draft-ngl", "-cd": "--ctx-size-draft",
        "-devd": "--spec-draft-device", "--device-draft": "--spec-draft-device", "-ctkd": "--spec-draft-type-k", "--cache-type-k-draft": "--spec-draft-type-k",
        "-ctvd": "--spec-draft-type-v", "--cache-type-v-draft": "--spec-draft-type-v", "--spec-draft-hf": "--hf-repo-draft", "-otd": "--override-tensor-draft",
        "-cmoed": "--cpu-moe-draft", "-ncmoed": "--n-cpu-moe-draft", "--draft": "--draft-max", "--draft-n": "--draft-max", "--draft-n-min": "--draft-min",
        "-h": "--help", "--usage": "--help", "-cl": "--cache-list", "-C": "--cpu-mask", "-Cr": "--cpu-range", "-Cb": "--cpu-mask-batch", "-Crb": "--cpu-range-batch",
        "--sampling-seq": "--sampler-seq", "--top-n-sigma": "--top-nsigma", "--typical-p": "--typical", "-l": "--logit-bias", "-j": "--json-schema",
        "-jf": "--json-schema-file", "-bs": "--backend-sampling", "-lcs": "--lookup-cache-static", "-lcd": "--lookup-cache-dynamic",
        "-cms": "--checkpoint-min-step", "-r": "--reverse-prompt", "-sp": "--special", "-mmdev": "--mmproj-device", "-ag": "--agent", "-no-ag": "--no-agent",
        "-no-kvu": "--no-kv-unified", "-sps": "--slot-prompt-similarity", "-hfrd": "--hf-repo-draft", "-kvo": "--kv-offload", "--log-verbose": "--verbose",
        "--log-verbosity": "--verbosity", "--webui-config": "--ui-config", "--webui-config-file": "--ui-config-file", "-td": "--threads-draft",
        "-tbd": "--threads-batch-draft", "--spec-draft-threads": "--threads-draft", "--spec-draft-override-tensor": "--override-tensor-draft",
        "--spec-draft-cpu-moe": "--cpu-moe-draft", "--spec-draft-n-cpu-moe": "--n-cpu-moe-draft", "--spec-draft-ncmoe": "--n-cpu-moe-draft",
        "--draft-p-min": "--spec-draft-p-min", "--draft-p-split": "--spec-draft-p-split", "--no-mmproj": "--no-mmproj-auto",
        "-dr": "--docker-repo", "-f": "--file", "-sys": "--system-prompt", "-hft": "--hf-token", "-nr": "--no-repack",
    },
    switches=frozenset({
        "--no-kv-offload", "--kv-offload", "--kv-unified", "--cpu-moe", "--swa-full", "--mlock", "--mmap", "--jinja", "--cont-batching", "--embedding",
        "--rerank", "--metrics", "--props", "--slots", "--verbose", "--offline", "--check-tensors", "--warmup", "--context-shift", "--special", "--perf",
        "--log-disable", "--conversation", "--interactive", "--escape", "--ui", "--webui", "--repack", "--op-offload", "--log-jsonl", "--ignore-eos",
        "--log-prefix", "--log-timestamps", "--cache-prompt", "--cache-idle-slots", "--mmproj-auto", "--mmproj-offload", "--spm-infill", "--reuse-port",
        "--models-autoload", "--agent", "--backend-sampling", "--color", "--multiline-input", "--simple-io", "--single-turn",
    }),
    words=frozenset({"--alias", "--api-key", "--hf-token", "--hf-repo", "--hf-file", "--tensor-split", "--model-draft", "--prompt", "--override-tensor"}),
    joined=frozenset({"--override-tensor"}),
    variables=VARIABLES,
)  # fmt: skip


def _parse_llama_command(text: str) -> Mapping[str, Any]:
    """The command's flags; the model by whichever of them names it."""
    found = serving.as_typed(
        serving.parse_server_command(HOW, text, (key.at for key in KEYS)), lambda at: is_key(FORMAT, at)
    )
    if "--model" not in found:
        return found
    if ONE_SLOT.search(text) and "llama-server" not in text:
        found.setdefault("--parallel", 1)
    repository, file = found.pop("--hf-repo", None), found.pop("--hf-file", None)
    if found["--model"] is None and isinstance(repository, str):
        types = gguf_file_types(str(file or ""))
        told = ":" in repository or "@" in repository
        if (
            not told and not types
        ):  # its name's end says that it has files of GGUF, the catalogue which is taken
            told, types = repository.lower().endswith("-gguf"), "Q4_K_M"
        found["--model"] = repository if told else f"{repository}:{types}"
        found.setdefault(PROJECTOR, not OWN_PROJECTOR & found.keys())
    found = _with_experts_as_rules(found)
    if found["--model"] is None and isinstance(address := found.pop("--model-url", None), str):
        found["--model"] = address.rpartition("/")[2]
    return found


def _with_experts_as_rules(found: dict[str, Any]) -> dict[str, Any]:
    """Layers of experts that are counted before rules of names stand as rules before those: the first that
    is found in a name decides (common/arg.cpp --cpu-moe, --n-cpu-moe).
    """
    order, rules = list(found), found.get("--override-tensor")
    counted = [
        at
        for at in EXPERT_LAYERS
        if found.get(at) and rules and order.index(at) < order.index("--override-tensor")
    ]
    for at in counted:
        layers = found[at]
        which = (
            r"\d+" if layers is True else f"({'|'.join(map(str, range(layers)))})" if _is_few(layers) else ""
        )
        if which:
            rules = rf"blk\.{which}\.ffn_(up|down|gate|gate_up)_exps=CPU,{rules}"
    return {
        at: rules if at == "--override-tensor" else held for at, held in found.items() if at not in counted
    }


EXPERT_LAYERS = ("--cpu-moe", "--n-cpu-moe")


def _is_few(layers: Any) -> bool:
    return isinstance(layers, int) and 0 < layers < 512


def _read_draft(value: Any, values: Values) -> Mapping[str, Any]:
    """A second model that drafts, by its file or its repository."""
    tokens = values.get(DRAFTED)
    return {
        "speculative.method": "draft",
        "speculative.model": gguf_model_name(str(value)),
        "speculative.tokens": tokens if isinstance(tokens, int) and tokens > 0 else USUAL_DRAFTED,
    }


def _written_draft(asked: Values) -> str | None:
    return str(asked["speculative.model"]) if asked.get("speculative.method") == "draft" else None


USUAL_DRAFTED = 3
"""Tokens of a draft where nobody says how many (tools/server/README.md, --spec-draft-n-max)."""


def _read_context_size(value: Any, _: Values) -> Mapping[str, Any]:
    """Cells of all sequences; 0 is what the model was made for."""
    return {} if value == 0 else {"serving.max_model_len": value}


def _moved_by_defaults(values: Values, asked: Values) -> Iterable[Moved]:
    held = int(asked.get("@draft") or 0)
    for at in OF_DRAFT - DRAFT if any(values.get(at) for at in DRAFT) else ():
        if values.get(at) not in (None, False, *WHOLE_DRAFT.get(at, ())):
            why = (
                f"{at} {values[at]}: the sheet is of a draft whole on the cards, with a cache as long in fp16"
            )
            most = EVERYTHING if at == "--ctx-size-draft" else 0 if at in OFF_CARDS else held
            yield Moved(at=at, why=why, low_bytes=-held, high_bytes=most)
    if values.get(PROJECTOR) is True and asked.get("@towers"):
        why = "the repository's projector is loaded, too, and is not in the sheet: --no-mmproj leaves it out"
        yield Moved(at=PROJECTOR, why=why, low_bytes=0, high_bytes=_most_of_projector(values, asked))
    for at in (at for at in OWN_PROJECTOR if values.get(at)):
        why = f"{values[at]} and its pictures are not in the sheet"
        yield Moved(at=at, why=why, low_bytes=0, high_bytes=_most_of_projector(values, asked))
    yield from _lowered_to_fit(values)


def _most_of_projector(values: Values, asked: Values) -> int:
    """The most that a projector and its pictures take, unless a flag of theirs says otherwise."""
    own = ("--mtmd-batch-max-tokens", "--image-max-tokens", "--image-min-tokens")
    return EVERYTHING if any(at in values for at in own) else asked.get("@projector") or EVERYTHING


def _lowered_to_fit(values: Values) -> Iterable[Moved]:
    """What the command did not say is lowered where it does not fit: the context first, then layers on
    devices (-fit, on unless it is off). A verdict of no is then never sure.
    """
    open_ones = [at for at, unset in UNSET_VALUES.items() if values.get(at) in unset]
    if open_ones and str(values.get("--fit", "on")).lower() not in ("off", "false", "0"):
        why = f"{' and '.join(open_ones)} left open: llama.cpp lowers what was not set until it fits (--fit)"
        yield Moved(at="--fit", why=why, low_bytes=-EVERYTHING, high_bytes=0)


def _read_slots(value: Any, _: Values) -> Mapping[str, Any]:
    """Slots, each with a cache of its own; the server's own number of them shares one."""
    auto = value == AUTO_SLOTS or (isinstance(value, int) and value < 0)
    return (
        {"serving.max_sequences": SLOTS, "serving.kv_unified": True}
        if auto
        else {"serving.max_sequences": value}
    )


def _read_layer_count(value: Any, _: Values) -> Mapping[str, Any]:
    """A number of layers; all, auto and less than none are what fits, which is all where they do."""
    return {"serving.gpu_layers": value} if isinstance(value, int) and value >= 0 else {}


def _are_read(rules: Any) -> bool:
    return tensor_rules(str(rules)) is not None


def _read_shares(value: Any, values: Values) -> Mapping[str, Any]:
    """Shares of layers; nothing but zeros is even ones, and one device has all whatever they are."""
    idle = not re.search("[1-9]", str(value)) or values.get("--split-mode") == "none"
    return {} if idle else {"serving.tensor_split": str(value)}


def _read_split_mode(value: Any, _: Values) -> Mapping[str, Any]:
    """Layer is the default; row and tensor, which cut matrices, stay open (``holds``)."""
    return {"serving.split_mode": "none"} if value == "none" else {}


def _read_main_gpu(value: Any, values: Values) -> Mapping[str, Any]:
    """Read where one device has all, and of no effect where layers are dealt (include/llama.h)."""
    alone = values.get("--split-mode") == "none" and isinstance(value, int)
    return {"serving.main_gpu": value} if alone else {}


def _read_cache_type(key: str) -> Any:
    return lambda value, _: {key: cache_dtype_of(value)}


def _cache_type_word(dtype: Any) -> str | None:
    words = {plan: word for word, plan in CACHE.items()}
    return words.get(dtype, str(dtype).removeprefix("gguf:").lower()) if dtype else None


def _read_flash_switch(value: Any, _: Values) -> Mapping[str, Any]:
    """On, off, or what the cards have (auto), which is on for those of CUDA."""
    return {"attention": "eager"} if str(value).lower() in ("off", "false", "0") else {}


def _llama_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from serving.unservable_problems({**asked, "attention": None})
    if asked.get("@nodes", 1) > 1:
        yield Problem(
            field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node"
        )


def _compose_llama_command(values: Values, _: Values) -> str:
    """Shell text around one command: every value is quoted."""
    flags = [
        at if value is True else f"--no-{at[2:]}" if value is False else f"{at} {shlex.quote(str(value))}"
        for at, value in values.items()
        if at.startswith("--")
    ]
    lines = " \\\n  ".join(["exec llama-server", *flags, '"$@"'])
    return f"#!/usr/bin/env bash\nset -euo pipefail\n{lines}\n"


KEYS = (
    *serving.PLACES,
    Key(at="--model", says="@model", out=plan_file_name, back=lambda v, _: {"@model": gguf_model_name(str(v))}, source=TABLE),
    Key(at="--model-draft", out=_written_draft, back=_read_draft, source="tools/server/README.md, Speculative params"),
    Key(at="--hf-repo-draft", out=lambda _: None, back=_read_draft, source="tools/server/README.md, Speculative params"),
    Key(at="--ctx-size", says="serving.max_model_len", back=_read_context_size, source=TABLE),
    Key(at="--parallel", says="serving.max_sequences", out=lambda a: a.get("serving.max_sequences") or 1, back=_read_slots, usual=AUTO_SLOTS, source=SERVER),
    Key(
        at="--kv-offload", out=lambda a: False if a.get("serving.host_cache") else None,
        back=lambda v, _: {"serving.host_cache": True} if v is False else {}, source=TABLE,
    ),
    Key(at="--swa-full", out=lambda a: a.get("serving.swa_full") or None, back=lambda v, _: {"serving.swa_full": True} if v is True else {}, source=TABLE),
    Key(
        at="--kv-unified", out=lambda a: a.get("serving.kv_unified") or None, back=lambda v, _: {"serving.kv_unified": True} if v is True else {},
        source=SERVER,
    ),
    Key(at="--ubatch-size", says="serving.max_batched_tokens", source=TABLE),
    Key(at="--batch-size", says="serving.logical_batch", source=TABLE),
    Key(at="--n-gpu-layers", says="serving.gpu_layers", back=_read_layer_count, source=TABLE),
    Key(at="--tensor-split", says="serving.tensor_split", back=_read_shares, source=TABLE),
    Key(at="--split-mode", says="serving.split_mode", back=_read_split_mode, holds=("layer", "none"), instead="layers dealt to devices whole", source=TABLE),
    Key(at="--main-gpu", says="serving.main_gpu", back=_read_main_gpu, source=TABLE),
    Key(
        at="--override-tensor", says="serving.tensor_overrides", back=lambda v, _: {"serving.tensor_overrides": str(v)} if _are_read(v) else {},
        reads=_are_read, source=TABLE,
    ),
    Key(at="--n-cpu-moe", says="serving.host_experts", source=TABLE),
    Key(
        at="--cpu-moe", out=lambda _: None, back=lambda v, _: {"serving.host_experts": EVERY_LAYER} if v is True else {},
        source=TABLE,
    ),
    Key(
        at="--cache-type-k", out=lambda a: _cache_type_word(a.get("serving.k_dtype")), back=_read_cache_type("serving.k_dtype"), source=TABLE,
    ),
    Key(
        at="--cache-type-v", out=lambda a: _cache_type_word(a.get("serving.kv_dtype")), back=_read_cache_type("serving.kv_dtype"), source=TABLE,
    ),
    Key(
        at="--flash-attn", out=lambda a: "off" if a.get("attention") == "eager" else None, back=_read_flash_switch, source=TABLE,
    ),
)  # fmt: skip

_KNOWN = """
threads threads-batch cpu-mask cpu-range cpu-strict prio poll cpu-mask-batch cpu-range-batch cpu-strict-batch prio-batch poll-batch predict keep perf
escape rope-scaling rope-scale rope-freq-base rope-freq-scale yarn-orig-ctx yarn-ext-factor yarn-attn-factor yarn-beta-slow yarn-beta-fast repack
defrag-thold load-mode mlock mmap direct-io numa fit fit-target check-tensors op-offload hf-token log-disable log-file log-jsonl log-colors verbose
offline verbosity log-prefix log-timestamps samplers seed sampler-seq ignore-eos temp top-k top-p min-p top-nsigma xtc-probability xtc-threshold
typical repeat-last-n repeat-penalty presence-penalty frequency-penalty dry-multiplier dry-base dry-allowed-length dry-penalty-last-n
dry-sequence-breaker adaptive-target adaptive-decay dynatemp-range dynatemp-exp mirostat mirostat-lr mirostat-ent logit-bias grammar grammar-file
json-schema json-schema-file cache-ram cache-idle-slots context-shift reverse-prompt special warmup spm-infill cont-batching alias tags embd-normalize
host port reuse-port path cors-origins cors-methods cors-headers cors-credentials api-prefix ui ui-config ui-config-file webui tools api-key
api-key-file ssl-key-file ssl-cert-file chat-template-kwargs timeout sse-ping-interval threads-http cache-prompt cache-reuse metrics props slots
slot-save-path media-path jinja reasoning-format reasoning reasoning-effort reasoning-budget reasoning-budget-message reasoning-preserve
chat-template chat-template-file prompt file interactive conversation color system-prompt single-turn multiline-input simple-io mmproj-auto mmproj mmproj-url
lookup-cache-static lookup-cache-dynamic draft-max draft-min draft-p-min draft-p-split spec-type spec-ngram-size-n spec-ngram-size-m
spec-ngram-min-hits spec-ngram-check-rate spec-draft-n-max spec-synth-len spec-synth-rates spec-draft-backend-sampling spec-draft-sampling
spec-ngram-mod-n-min spec-ngram-mod-n-max spec-ngram-mod-n-match spec-ngram-simple-size-n spec-ngram-simple-size-m spec-ngram-simple-min-hits
spec-ngram-map-k-size-n spec-ngram-map-k-size-m spec-ngram-map-k-min-hits spec-ngram-map-k4v-size-n spec-ngram-map-k4v-size-m
spec-ngram-map-k4v-min-hits video-fps video-timestamp-interval video-ffmpeg-dir ui-mcp-proxy tools-runtime mcp-servers-config mcp-servers-json agent
skip-chat-parsing prefill-assistant slot-prompt-similarity lora-init-without-apply sleep-idle-seconds log-prompts-dir models-autoload help version
cache-list list-devices completion-bash logit-bias threads-draft threads-batch-draft cpu-mask-draft cpu-range-draft cpu-strict-draft prio-draft poll-draft
cpu-mask-batch-draft cpu-strict-batch-draft prio-batch-draft poll-batch-draft spec-draft-n-min spec-draft-p-min spec-draft-p-split no-webui ctx-checkpoints checkpoint-min-step
"""
"""Of the processor, the host's memory, of sampling, the server and its logs: no byte of a GPU."""
_REMOVED = "draft-max draft-min spec-ngram-size-n spec-ngram-size-m spec-ngram-min-hits"
"""Flags at which this release's parser stops ("the argument has been removed")."""
_UNMODELLED: dict[str, tuple[Any, ...]] = {
    "device": (),
    "moe-cache-mib": (0,), "n-cpu-ffn": (0,), "lora": (), "lora-scaled": (), "control-vector": (),
    "control-vector-scaled": (), "control-vector-layer-range": (),
    "rpc": (), "kv-unified-per-slot": (), "pooling": (), "embedding": (False,), "rerank": (False,), "models-dir": (), "models-preset": (),
    "models-max": (), "docker-repo": (), "lazy-mode": ("auto", "off"), "override-kv": (), "fit-ctx": (), "mmproj-offload": (True,), "mmproj-device": (),
    "image-min-tokens": (), "image-max-tokens": (), "mtmd-batch-max-tokens": (), "model-url": (), "no-host": (False,), "backend-sampling": (False,),
    **dict.fromkeys((
        "embd-gemma-default", "fim-qwen-3b-default", "fim-qwen-7b-default", "fim-qwen-7b-spec", "fim-qwen-14b-spec", "fim-qwen-30b-default",
        "gpt-oss-20b-default", "gpt-oss-120b-default", "vision-gemma-4b-default", "vision-gemma-12b-default", "spec-default",
    ), ()),
}  # fmt: skip
"""With the values that are the sheet's."""

FORMAT = Format(
    name="llama.cpp", file="llama-server.sh", kind="shell", tested=VERSION, engines=("llama.cpp",), keys=KEYS, marks=frozenset({"--model"}),
    beside=serving.BESIDE | OF_THE_FILE, differs={"@model": "a file of that model, in the plan's types"}, known=frozenset(f"--{name}" for name in _KNOWN.split()),
    unmodelled={**serving.OPEN_PLACES, **{f"--{name}": harmless for name, harmless in _UNMODELLED.items()}},
    strict=("",), opens=serving.is_open_flag, removed=frozenset(f"--{name}" for name in _REMOVED.split()), taken=serving.variable_default_remarks, problems=_llama_plan_problems,
    weighed=(OF_DRAFT - DRAFT) | OWN_PROJECTOR, said={"task": "infer", "engine": "llama.cpp"}, moves=_moved_by_defaults, compose=_compose_llama_command, parse=_parse_llama_command,
)  # fmt: skip
