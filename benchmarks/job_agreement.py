"""Phases of jobs beside their traces: passes that read log-probabilities, and updates that learn from them,
as programs make them, on fake tensors. ``agreement.py --jobs`` prints the table.

What runs is the model's real code with the operations of the program around it (huggingface/trl f2cd577
trl/trainer/{grpo,dpo,kto,reward}_trainer.py, utils.py:479-560, experimental/orpo/orpo_trainer.py:708-823,
experimental/gkd/gkd_trainer.py:237-310), under autocast, with logits made fp32 where accelerate makes them
so.
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
from memsheet.jobs.templates.generation import generating_phase, own_generation
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
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"architectures": ["MistralForCausalLM"], "vocab_size": 8192, "num_hidden_layers": 5, "tie_word_embeddings": False, "sliding_window": None},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "vocab_size": 12288, "num_hidden_layers": 4, "tie_word_embeddings": False},
}  # fmt: skip
KNOWN = {**FAMILIES, **FURTHER}
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
    computed: str = "bf16-autocast"

    @property
    def name(self) -> str:
        more = "adapters" if self.adapters else "recompute" if self.recompute else "no recompute"
        width = "" if self.computed == "bf16-autocast" else f", {self.computed}"
        return f"{self.family}, {self.kind}, {self.rows} rows, {self.kept} kept, {more}{width}"


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
    """Ten configurations of each family, and further ones of other methods and families."""
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
        yield Case(family=family, kind="marked", rows=4)
        yield Case(family=family, kind="rewards", rows=4)
        yield Case(family=family, kind="distilled", rows=2)
        yield Case(family=family, kind="generated", rows=8)
        yield Case(family=family, kind="generated", rows=16, computed="bf16-pure")
    for family in FURTHER:
        yield Case(family=family, kind="read", rows=4, kept=513)
        yield Case(family=family, kind="learn", rows=4, kept=513)
        yield Case(family=family, kind="pairs", rows=2)


def _model(case: Case) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    own = {key: held for key, held in KNOWN[case.family].items() if key != "architectures"}
    labels = {"num_labels": 1, "pad_token_id": 0} if case.kind == "rewards" else {}
    config = AutoConfig.for_model(case.family, **SIZES, **own, **labels)
    kind = AutoModelForSequenceClassification if case.kind == "rewards" else AutoModelForCausalLM
    with torch.device("cpu"):
        model = kind.from_config(config, attn_implementation="sdpa")
    model = model.to("cuda", torch.bfloat16 if case.computed == "bf16-pure" else None)
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
    if case.kind == "generated":
        return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: _generate(case, model, ids)
    if case.kind == "read":

        def read() -> None:
            with torch.no_grad():
                _scaled(_logits(model, ids, case.kept), ids)

        return model, torch.optim.SGD(model.parameters(), lr=0.1), read
    frozen = _model(case).requires_grad_(False) if case.kind in BESIDE else None
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


def _generate(case: Case, model: Any, ids: Any) -> None:
    """All of a prompt at once, then a token at a time, with a cache that grows by it."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    for layer in cache.layers:  # in the dtype of keys, which rotary angles give theirs
        layer.dtype, layer.device, layer.is_initialized = model.dtype, ids.device, True
        layer.keys, layer.values = (torch.empty(0, dtype=model.dtype, device="cuda") for _ in range(2))
    model.eval()
    places = [(0, LENGTH - NEW), *((at, at + 1) for at in range(LENGTH - NEW, LENGTH))]
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for first, end in places:
            model(
                input_ids=ids[:, first:end], position_ids=torch.arange(first, end, device="cuda")[None].repeat(case.rows, 1),
                past_key_values=cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip


def _divergence(own: Any, other: Any) -> Any:
    """Of both from their mixture, of every word."""
    import torch
    from torch.nn.functional import kl_div, log_softmax

    own, other = own / 1.0, other / 1.0  # which stay until the loss is made
    ours, theirs = log_softmax(own, dim=-1), log_softmax(other, dim=-1)
    beta = torch.full((), 0.5, device="cuda")
    both = torch.stack([ours + torch.log1p(-beta), theirs + torch.log(beta)])
    mixed = torch.logsumexp(both, dim=0)
    away = kl_div(mixed, theirs, reduction="none", log_target=True)
    near = kl_div(mixed, ours, reduction="none", log_target=True)
    whole = beta * away + (1 - beta) * near
    return _answers(whole).sum()


def _answers(held: Any) -> Any:
    """Those of all positions, as a mask of them takes them."""
    import torch

    rows, length = held.shape[:2]
    whole = torch.zeros(rows * length, dtype=torch.long, device="cuda")
    return held[whole // length, whole % length]


def _rewarded(model: Any, ids: Any) -> Any:
    """The chosen rows before the others."""
    import torch

    with torch.autocast("cuda", dtype=torch.bfloat16):
        rewards = model(input_ids=ids, use_cache=False).logits.float().squeeze(-1)
    chosen, other = torch.chunk(rewards, 2)
    return -torch.nn.functional.logsigmoid(chosen - other).mean()


def _marked(logits: Any, frozen: Any, ids: Any) -> Any:
    """A loss of rows that are good and of rows that are not, beside what is kept for its figures."""
    import torch

    rows = len(ids) // 2
    own = _log_probabilities(logits, ids).sum(-1)
    with torch.no_grad():
        other = _logits(frozen, ids, LENGTH)
        told = _log_probabilities(other, ids).sum(-1)
    ratios = own - told
    loss = (1 - torch.sigmoid(ratios[:rows])).sum() + (1 - torch.sigmoid(-ratios[rows:])).sum()
    kept = logits[:, :-1, :].detach()
    halves = [kept.index_select(0, torch.arange(rows, device="cuda") + at) for at in (0, rows)]
    for half in halves:
        _answers(half).mean(-1).sum()
    return loss


def _loss(case: Case, model: Any, frozen: Any, ids: Any) -> Any:
    import torch

    if case.kind == "rewards":
        return _rewarded(model, ids)
    logits = _logits(model, ids, case.kept)
    if case.kind == "distilled":
        with torch.no_grad():
            other = _logits(frozen, ids, case.kept)
        return _divergence(logits[:, :-1, :], other[:, :-1, :])
    if case.kind == "marked":
        return _marked(logits, frozen, ids)
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


LOGITS = {"learn": 16, "pairs": 12, "margins": 14, "marked": 14, "distilled": 68}
"""Bytes of a logit, as the templates of jobs have them (jobs/templates/{trl,preferences,trl_values}.py)."""
BESIDE = ("pairs", "marked", "distilled")
"""Kinds with a frozen model that stands beside."""
NEW = 3
"""Tokens that are generated one by one."""


def _bytes_of(case: Case) -> int:
    """A row's exponentials stand beside all logits where they are read alone."""
    return LOGITS.get(case.kind, max(6, 4 + -(-4 // case.rows)))


def document(case: Case, config: Path) -> dict[str, Any]:
    """The job of the configuration."""
    plan: dict[str, Any] = {
        "task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": case.rows, "precision": case.computed,
        "recompute": {"mode": "full" if case.recompute else "none"}, "attention": "sdpa", "loss": "fused", "optimizer": {"implementation": "fused"},
    }  # fmt: skip
    adapter = {"adapter": {"kind": "lora", "rank": 16, "targets": ["all-linear"]}} if case.adapters else {}
    roles = {"actor": {"model": str(config), "plan": {**plan, **adapter}, "process": "trainer"}}
    if case.kind == "generated":
        return {"gpus": "1xH100-80GB", **_generation(case, roles, str(config))}
    if case.kind == "rewards":
        roles["actor"]["head"] = "values"
        return {"gpus": "1xH100-80GB", "roles": roles, "phases": [{"name": case.kind, "active": "actor"}]}
    if case.kind in BESIDE:
        roles["reference"] = {"model": str(config), "plan": plan, "trained": False, "process": "trainer"}  # type: ignore[dict-item]
    logits = {"tokens": case.rows * case.kept, "bytes": _bytes_of(case)}
    phase: dict[str, Any] = {"name": case.kind, "active": "actor", "logits": logits}
    if case.kind == "read":
        phase |= {"work": "forward", "residents": {"actor": "parameters"}}
    return {"gpus": "1xH100-80GB", "roles": roles, "phases": [phase]}


def _generation(case: Case, roles: dict[str, Any], model: str) -> dict[str, Any]:
    """The role and the phase as templates have them, before any update has made states."""
    own = KNOWN[case.family]
    heads = int(SIZES["num_key_value_heads"] if case.family != "olmo2" else SIZES["num_attention_heads"])
    elements = 2 * int(own["num_hidden_layers"]) * heads * int(SIZES["head_dim"]) * case.rows * LENGTH
    actor = roles["actor"]["plan"]
    actor = {
        **actor,
        "precision": {
            "parameters": "fp32" if case.computed == "bf16-autocast" else "bf16",
            "compute": "bf16",
        },
    }
    roles["rollout"] = own_generation(actor, model, rows=case.rows, new=NEW)
    phase = {**generating_phase(actor, elements), "residents": {"actor": "parameters"}}
    return {"roles": roles, "phases": [phase]}


def compared(case: Case) -> JobRow:
    """One configuration, predicted and traced."""
    if case.adapters:
        import peft  # noqa: F401  # whose import makes tensors
    own = {**SIZES, **KNOWN[case.family], "model_type": case.family}
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
