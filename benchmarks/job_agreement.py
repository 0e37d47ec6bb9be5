"""Phases of jobs beside their traces: passes that read log-probabilities, and updates that learn from them,
as programs make them, on fake tensors. ``agreement.py --jobs`` prints the table.

What runs is the model's real code with the operations of the program around it (huggingface/trl f2cd577
trl/trainer/{grpo,dpo,kto}_trainer.py, utils.py:479-560, experimental/orpo/orpo_trainer.py:708-823), under
autocast, with logits made fp32 where accelerate makes them so.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import memsheet
from memsheet.sheet import Component
from memsheet.units import GIB

BAR = 0.002
"""Of the peak (the tensors of the busiest instant)."""
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096}  # fmt: skip
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 8192, "num_hidden_layers": 6, "tie_word_embeddings": False},
    "llama": {"architectures": ["LlamaForCausalLM"], "vocab_size": 12288, "num_hidden_layers": 4, "tie_word_embeddings": False},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 16384, "num_hidden_layers": 5, "tie_word_embeddings": True},
}  # fmt: skip
LENGTH = 1024
Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration: a kind of phase, of rows of which so many positions have logits."""

    family: str
    kind: str
    rows: int
    kept: int = LENGTH
    recompute: bool = True
    adapters: bool = False

    @property
    def name(self) -> str:
        more = "adapters" if self.adapters else "recompute" if self.recompute else "no recompute"
        return f"{self.family}, {self.kind}, {self.rows} rows, {self.kept} kept, {more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """``error``: (predicted - traced) / traced."""

    name: str
    traced_bytes: int
    predicted_bytes: int

    @property
    def error(self) -> float:
        return (self.predicted_bytes - self.traced_bytes) / self.traced_bytes

    @property
    def holds(self) -> bool:
        return abs(self.error) <= BAR


def cases() -> Iterator[Case]:
    """Thirty configurations: of each family ten."""
    for family in FAMILIES:
        yield Case(family=family, kind="read", rows=4, kept=513)
        yield Case(family=family, kind="read", rows=1)
        yield Case(family=family, kind="read", rows=8, kept=257)
        yield Case(family=family, kind="learn", rows=4, kept=513)
        yield Case(family=family, kind="learn", rows=2)
        yield Case(family=family, kind="learn", rows=4, kept=513, recompute=False)
        yield Case(family=family, kind="learn", rows=4, kept=513, adapters=True)
        yield Case(family=family, kind="pairs", rows=4)
        yield Case(family=family, kind="pairs", rows=2)
        yield Case(family=family, kind="margins", rows=4)


def _model(case: Case) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    own = {key: held for key, held in FAMILIES[case.family].items() if key != "architectures"}
    config = AutoConfig.for_model(case.family, **SIZES, **own)
    with torch.device("cpu"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = model.to("cuda")
    model.tie_weights()
    return model


def _logits(model: Any, ids: Any, kept: int) -> Any:
    """In fp32, of the last positions of every row."""
    import torch

    few = {} if kept == ids.shape[1] else {"logits_to_keep": kept}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(input_ids=ids, use_cache=False, **few)
    return out.logits.float()


def _log_probabilities(logits: Any, ids: Any) -> Any:
    """Of each position the one of the next token, a row's sum of exponentials at a time."""
    return _picked(logits[:, :-1, :], ids)


def _picked(logits: Any, ids: Any) -> Any:
    import torch

    labels = ids[:, -logits.shape[1] :]
    picked = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
    return picked - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])


def _scaled(logits: Any, ids: Any) -> Any:
    """Divided by a temperature in place, of the positions that a token follows."""
    logits = logits[:, :-1, :]
    logits.div_(0.9)
    return _picked(logits, ids)


def build(case: Case) -> tuple[Any, Any, Step]:
    """The model, its optimizer and the step that is traced."""
    import torch

    model = _model(case)
    ids = torch.zeros(case.rows, LENGTH, dtype=torch.long, device="cuda")
    if case.kind == "read":

        def read() -> None:
            with torch.no_grad():
                _scaled(_logits(model, ids, case.kept), ids)

        return model, torch.optim.SGD(model.parameters(), lr=0.1), read
    frozen = _model(case).requires_grad_(False) if case.kind == "pairs" else None
    if case.adapters:
        model = _adapted(model)
    model.train()
    if case.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if case.adapters and case.recompute:
        model.enable_input_require_grads()
    learns = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=0.1, fused=True)

    def learn() -> None:
        _loss(case, model, frozen, ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, learn


def _adapted(model: Any) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    with torch.device("cuda"):
        return get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))


def _loss(case: Case, model: Any, frozen: Any, ids: Any) -> Any:
    import torch

    logits = _logits(model, ids, case.kept)
    if case.kind == "learn":
        own = _scaled(logits, ids)
        del logits
        return own.mean()
    if case.kind == "margins":
        half = case.rows // 2
        shifted = logits[:half, :-1, :].contiguous()
        told = torch.nn.functional.cross_entropy(
            shifted.view(-1, shifted.shape[-1]), ids[:half, 1:].reshape(-1)
        )
        del shifted
        sums = _log_probabilities(logits, ids).sum(-1)
        return told - torch.nn.functional.logsigmoid(sums[:half] - sums[half:]).mean()
    own = _log_probabilities(logits, ids)
    with torch.no_grad():
        other = _log_probabilities(_logits(frozen, ids, case.kept), ids)
    del logits
    return -torch.nn.functional.logsigmoid((own - other).sum())


LOGITS = {"learn": 16, "pairs": 12, "margins": 14}
"""Bytes of a logit, as the templates of jobs have them (jobs/templates/{trl,preferences}.py)."""


def _bytes_of(case: Case) -> int:
    """A row's exponentials stand beside all logits where they are read alone."""
    return LOGITS.get(case.kind, max(6, 4 + -(-4 // case.rows)))


def document(case: Case, config: Path) -> dict[str, Any]:
    """The job of the configuration."""
    plan: dict[str, Any] = {
        "task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": case.rows, "precision": "bf16-autocast",
        "recompute": {"mode": "full" if case.recompute else "none"}, "attention": "sdpa", "loss": "fused", "optimizer": {"implementation": "fused"},
    }  # fmt: skip
    adapter = {"adapter": {"kind": "lora", "rank": 16, "targets": ["all-linear"]}} if case.adapters else {}
    roles = {"actor": {"model": str(config), "plan": {**plan, **adapter}, "process": "trainer"}}
    if case.kind == "pairs":
        roles["reference"] = {"model": str(config), "plan": plan, "trained": False, "process": "trainer"}  # type: ignore[dict-item]
    logits = {"tokens": case.rows * case.kept, "bytes": _bytes_of(case)}
    phase: dict[str, Any] = {"name": case.kind, "active": "actor", "logits": logits}
    if case.kind == "read":
        phase |= {"work": "forward", "residents": {"actor": "parameters"}}
    return {"gpus": "1xH100-80GB", "roles": roles, "phases": [phase]}


def compared(case: Case) -> JobRow:
    """One configuration, predicted and traced."""
    if case.adapters:
        import peft  # noqa: F401  # whose import makes tensors
    own = {**SIZES, **FAMILIES[case.family], "model_type": case.family}
    with TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(own))
        predicted = memsheet.job(document(case, config)).sheets[0]
        traced = memsheet.trace_step(lambda: build(case), scratch=True).sheets[0]
    return JobRow(name=case.name, traced_bytes=_tensors(traced), predicted_bytes=_tensors(predicted))


def _tensors(sheet: memsheet.Sheet) -> int:
    """Tensors of the busiest instant, without a product's workspace."""
    sizes = (
        sheet.at(when).value - sheet.of(Component.WORKSPACES, instant=when).value for when in sheet.instants
    )
    return int(max(sizes))


def table() -> Iterator[tuple[JobRow, str]]:
    """Every configuration and its line."""
    for case in cases():
        row = compared(case)
        mark = "" if row.holds else "  BEYOND"
        sizes = f"{row.traced_bytes / GIB:8.4f} {row.predicted_bytes / GIB:8.4f} GiB"
        yield row, f"{row.name:52s} {sizes} {row.error:+9.4%}{mark}"
