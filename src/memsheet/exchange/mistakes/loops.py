"""Mistakes of training loops that people write themselves: scaling, clipping, accumulation, wrapping and
saving. Scripts are read, never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

from memsheet.exchange.mistakes.case import RAISES, SCALES, Case, FoundMistake, Rule, scaled_halves
from memsheet.exchange.shared.file_format import KEYWORDS
from memsheet.exchange.shared.lightning_trainer import ONE_UNIT, lightning_call
from memsheet.exchange.shared.model_casts import WIDTHS
from memsheet.exchange.shared.python_config import named_calls, read_module
from memsheet.exchange.shared.python_module import Module, Tree, attribute_path
from memsheet.exchange.shared.role_words import ROLES
from memsheet.exchange.shared.script_places import CLASS, LINE, LOOP, WHOLE
from memsheet.patterns import late_pattern

SCALERS = ("GradScaler", "ShardedGradScaler")
DRIVERS = ("Accelerator", "Fabric", "initialize", "LightningModule", "Trainer")
"""What runs backward, scales and divides by itself."""
CLIPS = ("clip_grad_norm_", "clip_grad_value_")
WRAPS = ("FSDP", "FullyShardedDataParallel")
POLICIES = ("auto_wrap_policy", "wrap", "enable_wrap", "auto_wrap")
SUMS = late_pattern(r"(total|running|epoch|train|tr|accum\w*|sum|avg|mean)_?loss(es)?$", re.IGNORECASE)
Look = Callable[[Module, Case], Iterator[tuple[int, str, str, str]]]


def _loop_modules(case: Case) -> Iterator[tuple[str, Module]]:
    for name, read in case.reads.items():
        text = case.texts.get(name, "")
        if read.form.name == "pytorch" and f"{LOOP}.reads" in read.values and text:
            try:
                yield name, read_module(text, {})
            except ValueError:
                continue


def _found_in_loops(look: Look, **more: Any) -> Callable[[Case], Iterator[FoundMistake]]:
    """A rule over each script: of a line, the name there, what is wrong and what cures it."""

    def looks(case: Case) -> Iterator[FoundMistake]:
        for name, module in _loop_modules(case):
            for line, what, says, cure in look(module, case):
                yield FoundMistake(where=f"{name}:{line}: {what}", says=says, cure=cure, **more)

    return looks


def _calls_of(module: Module, *names: str) -> list[Tree]:
    return list(named_calls(module, names, local=True))


def _backward_lines(module: Module) -> list[int]:
    return [int(held[LINE]) for held in _calls_of(module, "backward")]


def _unscaled_halves(module: Module, _: Case) -> Iterator[tuple[int, str, str, str]]:
    """fp16 under autocast with nothing that scales the loss."""
    if _calls_of(module, *SCALERS, *DRIVERS) or not _backward_lines(module):
        return
    for held in _calls_of(module, "autocast"):
        asked = str(held.get("dtype", held.get("1", "torch.float16")))
        on_gpu = "cuda" in f"{held.get('0', '')}{held.get('device_type', '')}{held[WHOLE]}"
        if held.get("enabled", True) is True and on_gpu and WIDTHS.get(asked) == "fp16":
            says = "computes in fp16 and no GradScaler scales the loss: small gradients are zero"
            yield int(held[LINE]), "autocast", says, "dtype=torch.bfloat16, or a GradScaler"
            return


def _scaled_fp16(case: Case) -> Iterator[FoundMistake]:
    """Weights in fp16 that train in full under a scaler: torch's own, or the one that accelerate makes."""
    for name, module in _loop_modules(case):
        asked = case.reads[name].request
        whole = asked.get("precision.parameters") == "fp16" and "adapter.rank" not in asked
        if not whole or _calls_of(module, *SCALES_ITSELF, *WRAPS):
            continue
        if RAISES.search(case.texts[name]) or any(held.form.name in SCALES for held in case.reads.values()):
            continue
        steps = [held for held in _calls_of(module, "step", "unscale_") if "scaler" in held[WHOLE]]
        torch_own = [held for held in _calls_of(module, SCALERS[0]) if held.get("enabled", True) is True]
        accelerated = [
            held for held in _calls_of(module, "Accelerator") if held.get("mixed_precision") == "fp16"
        ]
        clips = _calls_of(module, *CLIPS, "unscale_", "unscale_gradients")
        fused = any(held.get("fused") not in (None, False) for held in _calls_of(module, "AdamW", "Adam"))
        made = next(iter((torch_own if steps else []) or accelerated), None)
        if made is not None and (clips or not fused):
            yield scaled_halves(f"{name}:{made[LINE]}: {made[CLASS]}", case.reads[name])


SCALES_ITSELF = ("initialize", "LightningModule", "Trainer", "Fabric", "get_peft_model", "fully_shard", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin")  # fmt: skip


def _scaled_clipping(module: Module, _: Case) -> Iterator[tuple[int, str, str, str]]:
    """Gradients that are clipped while they are scaled."""
    unscaled, clipped = _calls_of(module, "unscale_"), _calls_of(module, *CLIPS)
    scaled = [held for held in _calls_of(module, "scale") if "scaler" in held[WHOLE]]
    if scaled and clipped and not unscaled and not _calls_of(module, *DRIVERS):
        says = "comes before scaler.unscale_: the norm that is clipped is the loss scale's multiple"
        yield int(clipped[0][LINE]), clipped[0][CLASS], says, "scaler.unscale_(optimizer) before it"


def _undivided_loss(module: Module, _: Case) -> Iterator[tuple[int, str, str, str]]:
    """Several backward passes to a step, and a loss that none of them divides."""
    if _calls_of(module, *DRIVERS) or _divides_loss(module.tree):
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If) or (rounds := _modulo_name(node.test)) is None:
            continue
        stepped = any(
            isinstance(held, ast.Call) and attribute_path(held.func)[-1:] == ["step"]
            for held in ast.walk(node)
        )
        if stepped and rounds.lower() in ROLES["accumulation"] and (lines := _backward_lines(module)):
            says = (
                f"adds up the losses of {rounds} micro-batches, and nothing divides them: the step is as "
                "many times too large"
            )
            yield lines[0], "backward", says, f"(loss / {rounds}).backward()"
            return


def _modulo_name(test: ast.expr) -> str | None:
    """Of ``(step + 1) % rounds == 0`` the last name of what divides."""
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return (attribute_path(node.right) or [""])[-1]
    return None


def _divides_loss(tree: ast.AST) -> bool:
    """Whether anything that is called a loss is divided, or multiplied by a share."""
    for node in ast.walk(tree):
        left = (
            node.left
            if isinstance(node, ast.BinOp)
            else node.target
            if isinstance(node, ast.AugAssign)
            else None
        )
        if (
            left is not None
            and isinstance(getattr(node, "op", None), ast.Div | ast.Mult)
            and "loss" in ast.unparse(left)
        ):
            return True
    return any(
        isinstance(node, ast.keyword) and node.arg in ("reduction", "gradient", "num_items_in_batch")
        for node in ast.walk(tree)
    )


def _kept_graphs(module: Module, _: Case) -> Iterator[tuple[int, str, str, str]]:
    """Losses that are added up with the graphs that made them."""
    lines = _backward_lines(module)
    for node in ast.walk(module.tree) if lines else ():
        match node:
            case ast.AugAssign(op=ast.Add(), target=ast.Name(id=name), value=ast.Name(id="loss")):
                if SUMS.match(name):
                    says = "adds the loss as a tensor, so that every step's graph is kept"
                    yield node.lineno, name, says, f"{name} += loss.detach()"


def _whole_units(case: Case) -> Iterator[FoundMistake]:
    """One unit of FSDP for the whole model: all parameters are gathered at once."""
    for name, module in _loop_modules(case):
        calls = _calls_of(module, *WRAPS)
        shards = _calls_of(module, "fully_shard")
        alone = len(calls) == 1 and KEYWORDS not in calls[0] and not any(at in calls[0] for at in POLICIES)
        alone = alone and not _calls_of(module, *POLICIES)
        once = len(shards) == 1 and not calls and not _inside_loop(module.tree, int(shards[0][LINE]))
        driven = case.reads[name].values.get(f"{LOOP}.{ONE_UNIT}") is True and lightning_call(module)
        if not (alone or once or driven):
            continue
        held = driven or (calls[0] if alone else shards[0])
        size = _gathered_bytes(case)
        cure = (
            "auto_wrap_policy=transformer_auto_wrap_policy"
            if alone or driven
            else "fully_shard(layer) for each layer first"
        )
        yield FoundMistake(
            where=f"{name}:{held[LINE]}: {held[CLASS]}", cure=cure, saves_bytes=size or None,
            says="wraps the model as one unit: all of its parameters are gathered at once, and freed after the step",
        )  # fmt: skip


def _inside_loop(tree: ast.AST, line: int) -> bool:
    return any(
        isinstance(node, ast.For | ast.While | ast.ListComp) and node.lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def _gathered_bytes(case: Case) -> int:
    """Every parameter in the dtype that it is gathered in."""
    plan = case.trained
    return case.answer.parameters * int(plan.precision.compute.bits) // 8 if case.answer and plan else 0


def _whole_saves(module: Module, _: Case) -> Iterator[tuple[int, str, str, str]]:
    for held in _calls_of(module, "FullStateDictConfig"):
        if held.get("offload_to_cpu", False) is False:
            says = "gathers the whole state dict on the card while it is saved"
            yield int(held[LINE]), "FullStateDictConfig", says, "offload_to_cpu=True, rank0_only=True"


_AMP = "pytorch/pytorch v2.9.0 docs/source/notes/amp_examples.rst"
LOOPS = (
    Rule(id="fp16-without-scaler", source=f"{_AMP}: typical mixed precision training", looks=_found_in_loops(_unscaled_halves)),
    Rule(id="scaled-fp16-loop", source="torch 2.13.0 torch/amp/grad_scaler.py:274, 418; accelerate 1.15.0 accelerator.py:566", looks=_scaled_fp16),
    Rule(id="clip-before-unscale", source=f"{_AMP}: gradient clipping", looks=_found_in_loops(_scaled_clipping)),
    Rule(id="undivided-loss", source=f"{_AMP}: gradient accumulation", looks=_found_in_loops(_undivided_loss)),
    Rule(id="kept-graphs", source="pytorch/pytorch v2.9.0 docs/source/notes/faq.rst: don't accumulate history across your training loop", looks=_found_in_loops(_kept_graphs)),
    Rule(id="one-unit", source="pytorch/pytorch v2.9.0 torch/distributed/fsdp/fully_sharded_data_parallel.py: auto_wrap_policy", looks=_whole_units, beyond=True),
    Rule(id="whole-state-on-card", source="pytorch/pytorch v2.9.0 torch/distributed/fsdp/api.py: FullStateDictConfig", looks=_found_in_loops(_whole_saves)),
)  # fmt: skip
