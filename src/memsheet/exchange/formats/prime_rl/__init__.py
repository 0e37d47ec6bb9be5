"""prime-rl's configurations (``uv run rl @ rl.toml``, ``uv run sft @ sft.toml``): a trainer on FSDP2, and
vLLM's servers on cards of their own.

The sheet is of what trains; its optimizer's states, which are on the card for the step alone, and the servers
make a job with it. Lines are of PrimeIntellect-ai/prime-rl at 559b447, under src/prime_rl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.prime_rl.places import (
    PROGRAM,
    RL,
    SERVES,
    SFT,
    SFT_TOP,
    head_chunk,
    is_supervised,
    keeps_states_away,
    prime_rl_settings,
    replica_count,
    row_count,
    row_tokens,
    served_cards,
    trained_cards,
    trainer_place,
    trainer_value,
    trains_on_host,
)
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values
from memsheet.exchange.shared.read_only_rows import Back, read_elsewhere, read_only_row
from memsheet.exchange.shared.trainers import uniform_precision_keys
from memsheet.sheet import Instant

VERSION = "prime-rl 559b447"
ROLES, COMPILED = "$.roles", "$.compiled"
CONFIGS, MODEL = "packages/prime-rl-configs/src/prime_rl/configs/trainer.py", "trainer/model.py"
ROOTS = {RL: "trainer.model", SFT: "model"}
OPTIMIZERS = {RL: "trainer.optim.type", SFT: "optim.type"}
WORDS = {"bfloat16": "bf16", "float32": "fp32"}
MOVED = ("quantization", "moe_fused_kernel", "freeze_moe_router", "index_cache")
"""Of the model that trains, what changes bytes and is not modelled."""


def _of_program(program: str, back: Back) -> Back:
    """A row that the program of that name reads."""
    return lambda value, values: back(value, values) if values.get(PROGRAM) == program else {}


def _read_shared_model(value: Any, values: Values) -> Mapping[str, Any]:
    """The model of all parts, unless the trainer has its own (utils/validation.py, propagate)."""
    return {"@model": value} if values.get("trainer.model.name") is None else {}


def _read_row(_: Any, values: Values) -> Mapping[str, Any]:
    rows, tokens = row_count(values), row_tokens(values)
    kind = {} if is_supervised(values) else {"?seq_len_kind": "maximum"}
    return {"microbatch": rows, "seq_len": tokens, **kind} if rows and tokens else {}


def _read_trained_cards(_: Any, values: Values) -> Mapping[str, Any]:
    """FSDP2 over all cards that train, in as many copies as groups of nodes are said."""
    cards, copies = trained_cards(values), replica_count(values)
    spread = {"mesh.dp_replicate": copies} if copies > 1 else {}
    return {"@gpus": cards, **spread} if cards else {}


def _read_optimized_widths(value: Any, values: Values) -> Mapping[str, Any]:
    """Shards as they are optimized, computed in bf16 and reduced in another dtype (trainer/model.py:824)."""
    held = WORDS.get(str(value), str(value))
    reduced = str(trainer_value(values, "reduce_dtype", "float32"))
    return {
        **uniform_precision_keys(held),
        "precision.compute": "bf16",
        "precision.reduce": WORDS.get(reduced, reduced),
    }


def _read_checkpoints(_: Any, values: Values) -> Mapping[str, Any]:
    """Whole layers, every n-th of them; parts of layers are counted as if nothing was recomputed, for only
    prime-rl's own layers have any (trainer/model.py:1141-1165).
    """
    if trainer_value(values, "ac", True) is False and trainer_value(values, "ac_offloading", True) is False:
        return {"recompute.mode": "none"}
    if trainer_value(values, "ac.mode", "full") != "full":
        return {"recompute.mode": "none"}
    every = trainer_value(values, "ac.freq", 1)
    if type(every) is int and every > 1:
        return {"recompute.mode": "selective", "recompute.modules": ["layer"], "recompute.every": every}
    return {"recompute.mode": "full"}


def _read_moved_activations(value: Any, _: Values) -> Mapping[str, Any]:
    return {} if value in (False, "None") else {"offload.activations": True}


def _read_optimizer_type(value: Any, values: Values) -> Mapping[str, Any]:
    """Of torch, fused where states stay on the card (trainer/optim/__init__.py)."""
    name = {"sign_sgd": "sgd"}.get(str(value), str(value))
    fused = "foreach" if keeps_states_away(values) else "fused"
    return {"optimizer.name": name, **({"optimizer.implementation": fused} if name == "adamw" else {})}


def _read_prime_lora(value: Any, values: Values) -> Mapping[str, Any]:
    named = values.get(f"{trainer_place(values)}.lora.target_modules")
    targets = [at for at in named if str(at).endswith("_proj")] if isinstance(named, list) else ["all-linear"]
    held = str(trainer_value(values, "optimization_dtype", "float32"))
    return {
        "adapter.kind": "lora", "adapter.rank": value, "adapter.targets": targets or ["all-linear"], "adapter.dtype": WORDS.get(held, held),
    }  # fmt: skip


def _read_explicit_ep(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.ep": value} if type(value) is int and value > 1 else {}


def _deployment_notes(values: Values) -> Mapping[str, Any]:
    """What else a step has, in words; the servers, and states that come and go."""
    found: dict[str, Any] = {}
    parts = ["vLLM on cards of its own"] if served_cards(values) != 0 else []
    parts += ["the optimizer's states on the card for its step alone"] if keeps_states_away(values) else []
    if trains_on_host(values):
        parts.append("the optimizer's states on the host")
    if trainer_value(values, "compile", True) is not False:
        found[COMPILED] = "True (the sheet is of layers that run uncompiled)"
    return {**found, **({ROLES: f"the trainer; {', '.join(parts)}"} if parts else {})}


def _head_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Logits of a part of the tokens and of the vocabulary at once, of whole rows where that is off
    (trainer/models/layers/lm_head.py:89-202, trainer/rl/train.py:440).
    """
    if is_supervised(values):
        return
    chunk, tokens, words = head_chunk(values), asked.get("@tokens", 0), asked.get("@vocab", 0)
    low, high = (0, 20) if chunk else (8, 18)
    elements = min(chunk, tokens) * min(words, 8192) if chunk else tokens * words
    why = "logits and their gradients (trainer/models/layers/lm_head.py:89-202)"
    yield Moved(
        at="logits", why=why, low_bytes=low * elements, high_bytes=high * elements, instant=Instant.LOSS
    )


def _rows_of_program(program: str) -> tuple[Key, ...]:
    """The model that trains, where the program has it."""
    root = ROOTS[program]

    def row(name: str, back: Back, source: str, usual: Any = None) -> Key:
        return read_only_row(f"{root}.{name}", _of_program(program, back), source, usual)

    return (
        row(
            "attn",
            lambda v, _: (
                {"attention": "flash"} if "flash" in str(v) or v == "auto" else {"attention": str(v)}
            ),
            f"{CONFIGS}:160",
            "auto",
        ),
        row("optimization_dtype", _read_optimized_widths, f"{CONFIGS}:194", "float32"),
        row("reduce_dtype", read_elsewhere, f"{CONFIGS}:196"),
        row("ac.mode", _read_checkpoints, f"{CONFIGS}:31", "full"),
        *(row(name, read_elsewhere, f"{CONFIGS}:33") for name in ("ac", "ac.freq", "ac.targets")),
        row("ac_offloading", _read_moved_activations, f"{CONFIGS}:168", True),
        row("ac_offloading.max_inflight_activations", read_elsewhere, f"{CONFIGS}:48"),
        row(
            "fsdp_cpu_offload",
            lambda v, _: {"offload.parameters": 1, "offload.optimizer": 1} if v is True else {},
            f"{CONFIGS}:170",
        ),
        row("optim_cpu_offload", read_elsewhere, f"{CONFIGS}:172"),
        row("reshard_after_forward", lambda v, _: {"reshard_after_forward": v}, f"{CONFIGS}:176"),
        row("dp_replicate", read_elsewhere, f"{CONFIGS}:178"),
        row("cp", lambda v, _: {"mesh.cp": v}, f"{CONFIGS}:188"),
        row("ep", _read_explicit_ep, f"{CONFIGS}:180"),
        row("lora.rank", _read_prime_lora, f"{CONFIGS}:91"),
        row("lora.target_modules", read_elsewhere, f"{CONFIGS}:97"),
        row("compile", read_elsewhere, f"{CONFIGS}:164"),
        row(
            "fused_lm_head_token_chunk_size",
            lambda _, values: {"loss": "plain" if is_supervised(values) else "fused"},
            f"{CONFIGS}:214",
            8192,
        ),
        read_only_row(
            OPTIMIZERS[program], _of_program(program, _read_optimizer_type), f"{CONFIGS}:371", "adamw"
        ),
    )


KEYS = (
    read_only_row(PROGRAM, lambda *_: {"engine": "fsdp2", "zero": 3, "gradient_sync": "every"}, "entrypoints"),
    read_only_row("model.name", _read_shared_model, f"{CONFIGS}; rl.py", "Qwen/Qwen3-0.6B"), read_only_row("trainer.model.name", lambda v, _: {"@model": v}, CONFIGS),
    *(read_only_row(at, _of_program(program, _read_row), CONFIGS, usual) for at, program, usual in (
        ("seq_len", RL, 2048), ("trainer.model.seq_len", RL, None), ("data.seq_len", SFT, 128), ("data.micro_batch_size", SFT, None),
    )),
    read_only_row("deployment.num_train_gpus", _read_trained_cards, "rl.py", 1),
    *(read_only_row(f"deployment.{name}", _read_trained_cards, "rl.py") for name in ("type", "num_train_nodes", "gpus_per_node")),
    read_only_row("data.batch_size", _of_program(SFT, lambda v, _: {"global_batch": v}), "sft.py"),
    *_rows_of_program(RL), *_rows_of_program(SFT),
)  # fmt: skip
UNMODELLED: Mapping[str, tuple[Any, ...]] = {
    ROLES: (), COMPILED: (), **{f"{root}.{name}": (False, "None") for root in ROOTS.values() for name in MOVED},
    **{f"{root}.{name}": (None,) for root in ROOTS.values() for name in ("debug.num_layers", "vlm")},
}  # fmt: skip


FORMAT: Format = Format(
    name="prime-rl", file="rl.toml", kind="toml", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "dropout": 0.0}, marks=frozenset({"$"}), parse=prime_rl_settings,
    absent=_deployment_notes, moves=_head_moves, own_processes=True, row=row_tokens, keys_complete=False, unmodelled=UNMODELLED,
    known=frozenset({
        SERVES, "seq_len", "max_steps", "tokenizer", "output_dir", "clean", "dry_run", *(f"{at}.*" for at in SFT_TOP), *SFT_TOP, "trainer.*", "orchestrator.*", "orchestrator",
        "inference.*", "rollout_transport.*", "run.*", "wandb.*",
    }) - set(UNMODELLED) - {key.at for key in KEYS},
)  # fmt: skip
