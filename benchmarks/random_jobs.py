"""Jobs that nobody chose: small models and words of TRL's configurations drawn at random, and every pass of
their phases beside the trace of that trainer's own loss. ``agreement.py --jobs --random N`` prints the table.

The job is what ``memsheet check`` makes of the words. The model is built by ``memsheet.run`` as the plan of
what trains has it, and prepared as accelerate prepares one (huggingface/accelerate v1.15.0 accelerator.py,
prepare_model: autocast, and outputs made fp32); losses are the trainers' own methods, of the TRL that is
installed, over rows without padding. What they ask a tensor for, to log it, is told them.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType, SimpleNamespace
from typing import Any

from random_plans import Config, drawn_config

import memsheet
from memsheet.errors import InputError, input_error
from memsheet.sheet import OUTSIDE_TENSORS, Component, Instant, Sheet

BAR = 0.002
"""Of the peak of a pass (the tensors of its busiest instant)."""
FAMILIES = (
    "llama", "qwen3", "qwen2", "olmo2", "cohere", "granite", "gemma2", "llama", "qwen3",
)  # fmt: skip
Words = dict[str, Any]
Step = Callable[[], None]
GPU = "1xH100-80GB"
SINGLE = ("reward",)
"""Methods that train one model alone, of which there is a sheet and no job."""
NAMED = "a/b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration, the trainer's method, and its words. ``length``: tokens of a row; ``new``: of them
    those of an answer.
    """

    number: int
    family: str
    config: Config
    method: str
    words: Words
    length: int
    new: int

    @property
    def name(self) -> str:
        told = ", ".join(f"{key}={value}" for key, value in self.words.items() if key not in UNTOLD)
        return f"{self.number}: {self.method} {told}"


UNTOLD = ("model_name_or_path", "dataset_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """A pass of a case. ``error``: (predicted - traced) / traced; ``refused``: why there are no figures."""

    model: str
    name: str
    phase: str
    traced_bytes: int = 0
    predicted_bytes: int = 0
    low: int = 0
    high: int = 0
    refused: str | None = None
    instants: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def error(self) -> float:
        return (self.predicted_bytes - self.traced_bytes) / self.traced_bytes if self.traced_bytes else 0.0

    @property
    def holds(self) -> bool:
        return not self.refused and abs(self.error) <= BAR


# ---- words -------------------------------------------------------------------------------------------------

DPO_LOSSES = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft",
    "sigmoid_norm",
)  # fmt: skip
GRPO_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo")
METHODS = (
    *("DPO",) * 5, *("KTO",) * 2, *("ORPO",) * 2, *("CPO",) * 2, *("GRPO",) * 5, *("RLOO",) * 2, *("GKD",) * 2, *("reward",) * 2,
)  # fmt: skip
FILES = {"reward": "reward", "GKD": "gkd", "CPO": "cpo", "ORPO": "orpo", "KTO": "kto", "DPO": "dpo", "GRPO": "grpo", "RLOO": "rloo"}  # fmt: skip
POLICIES = ("GRPO", "RLOO")
PAIRS = ("DPO", "ORPO", "CPO", "reward")
BESIDE = ("DPO", "KTO", "GKD")


def drawn_words(method: str, draw: random.Random, length: int, new: int) -> Words:
    """Words of a recipe of ``method``."""
    rows = draw.randint(1, 4)
    found: Words = {"model_name_or_path": NAMED, "dataset_name": "x", "per_device_train_batch_size": rows}
    if method in POLICIES:
        group = draw.choice([each for each in (2, 3, 4, 8) if (2 * each) % 1 == 0])
        found |= {"max_prompt_length": length - new, "max_completion_length": new, "num_generations": group}
        found["per_device_train_batch_size"] = group * draw.randint(1, 2) if group < 4 else group
        found |= {"beta": draw.choice((0.0, 0.04)), "use_vllm": True, "vllm_mode": "server"}
        found["temperature"] = draw.choice((1.0, 0.9))
    else:
        found["max_length"] = length
    if method == "GRPO":
        found["loss_type"] = draw.choice(GRPO_LOSSES)
        found["num_iterations"] = draw.choice((1, 1, 2))
    if method == "DPO":
        found["loss_type"] = draw.choice(DPO_LOSSES)
        found["precompute_ref_log_probs"] = draw.random() < 0.2
        if draw.random() < 0.2:
            found["use_weighting"] = True
        if draw.random() < 0.2:
            found["ld_alpha"] = 0.5
    if method == "KTO":
        found |= {"loss_type": draw.choice(("kto", "apo_zero_unpaired")), "desirable_weight": 1.0}
        found["per_device_train_batch_size"] = 2 * draw.randint(1, 2)  # as many good rows as others
    if method == "CPO":
        found |= {
            "loss_type": draw.choice(("sigmoid", "hinge", "ipo", "simpo")),
            "cpo_alpha": draw.choice((1.0, 0.0)),
        }
    if method == "GKD":
        found |= {
            "teacher_model_name_or_path": NAMED,
            "beta": draw.choice((0.0, 0.5, 1.0)),
            "max_new_tokens": new,
            "lmbda": 0.5,
        }
    return found | _drawn_training(draw)


def _drawn_training(draw: random.Random) -> Words:
    found: Words = {
        "gradient_checkpointing": draw.random() < 0.6,
        "attn_implementation": draw.choice(("sdpa", "sdpa", "eager")),
    }
    if draw.random() < 0.5:
        found["dtype"] = "bfloat16"
    found["optim"] = draw.choice(("adamw_torch_fused", "adamw_torch", "sgd", "adafactor"))
    if draw.random() < 0.3:
        found["gradient_accumulation_steps"] = draw.randint(2, 3)
    if draw.random() < 0.35:
        found |= {
            "use_peft": True,
            "lora_r": draw.randint(2, 33),
            "lora_target_modules": draw.choice(("all-linear", ["q_proj", "v_proj"])),
        }
        if draw.random() < 0.3:
            found["load_in_4bit"] = True
    return found


def drawn_case(number: int, methods: tuple[str, ...] = (), families: tuple[str, ...] = ()) -> Case:
    draw = random.Random(f"job {number}")
    family, method = draw.choice(families or FAMILIES), draw.choice(methods or METHODS)
    config = drawn_config(family, draw)
    length = draw.choice((draw.randint(40, 600), 64 * draw.randint(1, 8)))
    new = draw.randint(8, length - 8)
    return Case(
        number=number, family=family, config=config, method=method, words=drawn_words(method, draw, length, new), length=length, new=new,
    )  # fmt: skip


def drawn_cases(
    count: int, seed: int, methods: tuple[str, ...] = (), families: tuple[str, ...] = ()
) -> Iterator[Case]:
    for number in range(seed * 1000, seed * 1000 + count):
        yield drawn_case(number, methods, families)


# ---- what is predicted -------------------------------------------------------------------------------------


def labelled(config: Config) -> Config:
    """The configuration of a model with a head of one label."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as NAMES,
    )

    return {**config, "architectures": [NAMES[config["model_type"]]], "num_labels": 1}


def job_of(case: Case, folder: Path) -> memsheet.Answer:
    """The job that a recipe of its words starts. Raises InputError where it is none."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(case.config))
    file = folder / f"{FILES[case.method]}.yaml"
    file.write_text(json.dumps(case.words))
    found = memsheet.check(file, gpus=GPU, model=str(folder / "model"))
    if found.answer is None or (found.answer.job is None and case.method not in SINGLE):
        why = "; ".join((*found.why_not, found.no_model, found.doubt, *(str(one) for one in found.mistakes)))
        raise input_error("job", case.method, f"is none: {why}")
    return found.answer


def tensors(
    sheet: Sheet, when: Instant, end: str = "value", without: tuple[Component, ...] = (), role: str = ""
) -> int:
    """Tensors of an instant, of one role where it is named, without a product's workspace."""
    left_out = (*OUTSIDE_TENSORS, Component.WORKSPACES, *without)
    return sum(
        int(getattr(item.at[when], end))
        for item in sheet.items
        if when in item.at and item.component not in left_out and item.path.startswith(role)
    )


# ---- what is traced ----------------------------------------------------------------------------------------


def _mode() -> Any:
    """What answers questions for a tensor's values: a mask takes all, every figure is one, and half of the
    rows are good.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Told(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.item:
                return 1.0
            if func is torch.Tensor.__bool__:
                return True
            if func is torch.nonzero:
                half = len(args[0]) // 2
                return torch.arange(half, device="cuda")[:, None]
            if func is torch.Tensor.__getitem__ and _is_mask(args[1]):
                held, mask = args
                whole = torch.zeros(mask.numel(), dtype=torch.long, device=held.device)
                return func(held, tuple(whole.new_zeros(mask.numel()) for _ in mask.shape))
            return func(*args, **(kwargs or {}))

    return Told()


def _is_mask(index: Any) -> bool:
    import torch

    return isinstance(index, torch.Tensor) and index.dtype is torch.bool


class _Alone:
    """accelerate's Accelerator of one process."""

    device = "cuda"
    num_processes = 1
    sync_gradients = True

    def gather(self, held: Any) -> Any:
        return held

    gather_for_metrics = gather

    def reduce(self, held: Any, **_: Any) -> Any:
        return held

    def unwrap_model(self, model: Any) -> Any:
        return model


def _prepared(model: Any) -> Any:
    import torch
    from accelerate.utils import convert_outputs_to_fp32

    cast = torch.autocast("cuda", dtype=torch.bfloat16)(model.forward.__func__)
    model.forward = MethodType(cast, model)
    model.forward = MethodType(convert_outputs_to_fp32(model.forward.__func__), model)
    return model


def _models(case: Case, plan: Any) -> tuple[Any, Any]:
    """What trains, and what stands beside it or None."""
    from memsheet.frozen import replace
    from memsheet.run.adapters import apply_adapter, apply_quantization
    from memsheet.run.model import build_config, build_model
    from memsheet.run.recompute import apply_recompute

    settings = build_config(labelled(case.config) if case.method in SINGLE else case.config, plan)
    model = apply_adapter(apply_quantization(build_model(settings, plan, "cuda"), plan), plan)
    apply_recompute(model, plan)
    beside = None
    if _has_beside(case):
        still = replace(plan, adapter=None)
        beside = apply_quantization(build_model(build_config(case.config, still), still, "cuda"), still)
        beside = _prepared(beside.eval())
    return _prepared(model), beside


def _has_beside(case: Case) -> bool:
    words = case.words
    if case.method == "GKD":
        return True
    return case.method in BESIDE and not words.get("use_peft") and not words.get("precompute_ref_log_probs")


OWN_LOSSES = {"KTO": "kto", "GRPO": "dapo"}
"""Of trainers, where nothing is said."""


def _stub(case: Case, model: Any, beside: Any) -> Any:
    """What a trainer's loss asks its trainer."""
    words = case.words
    arguments = SimpleNamespace(
        gradient_checkpointing_kwargs={"use_reentrant": False}, discopop_tau=0.05, use_bias_correction_kl=False, delta=None,
        center_rewards_coefficient=None, device="cuda",
    )  # fmt: skip
    return SimpleNamespace(
        args=arguments, accelerator=_Alone(), model=model, ref_model=beside, teacher_model=beside, aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, ld_alpha=words.get("ld_alpha"),
        precompute_ref_logps=bool(words.get("precompute_ref_log_probs")), f_divergence_type="reverse_kl", loss_types=[words.get("loss_type", "sigmoid")],
        loss_type=words.get("loss_type", OWN_LOSSES.get(case.method, "sigmoid")), loss_weights=[1.0], beta=words.get("beta", 0.1), label_smoothing=0.1,
        use_weighting=bool(words.get("use_weighting")), calculate_KL=words.get("loss_type") != "apo_zero_unpaired", desirable_weight=1.0, undesirable_weight=1.0,
        use_liger_kernel=False, is_encoder_decoder=False, padding_value=0, pad_token_id=0, cpo_alpha=words.get("cpo_alpha", 1.0), alpha=0.0, simpo_gamma=0.5,
        temperature=words.get("temperature", 1.0), model_kwarg_keys=("logits_to_keep",), _entropy_bonus_enabled=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.2, use_vllm=True,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1, max_completion_length=case.new, use_liger_gkd_loss=False,
        _peft_has_been_casted_to_bf16=False, store_metrics=lambda *_, **__: None,
    )  # fmt: skip


def _with_methods(stub: Any, trainer: type, *names: str) -> Any:
    for name in names:
        held = trainer.__dict__[name]
        setattr(
            stub, name, held.__func__ if isinstance(held, staticmethod) else partial(_unwrapped(held), stub)
        )
    return stub


def _unwrapped(held: Any) -> Any:
    """A method without what tells the time of it."""
    return getattr(held, "__wrapped__", held)


def _ones(rows: int, length: int) -> Any:
    import torch

    return torch.ones(rows, length, dtype=torch.long, device="cuda")


def _of_pairs(case: Case, model: Any, beside: Any) -> Step:
    from trl.trainer.dpo_trainer import DPOTrainer

    rows = 2 * case.words["per_device_train_batch_size"]
    inputs = {name: _ones(rows, case.length) for name in ("input_ids", "attention_mask", "completion_mask")}
    inputs |= {name: _ones(rows // 2, 1)[:, 0].float() for name in ("ref_chosen_logps", "ref_rejected_logps")}
    stub = _stub(case, model, beside)
    return lambda: DPOTrainer._compute_loss(stub, model, inputs, False)  # noqa: SLF001 - the trainer's own


def _of_marked(case: Case, model: Any, beside: Any) -> Step:
    from trl.trainer.kto_trainer import KTOTrainer

    rows = case.words["per_device_train_batch_size"]
    names = ("input_ids", "attention_mask", "completion_mask")
    inputs = {f"{kind}{name}": _ones(rows, case.length) for kind in ("", "KL_") for name in names}
    inputs["label"] = _ones(rows, 1)[:, 0].bool()
    stub = _with_methods(_stub(case, model, beside), KTOTrainer, "_compute_kl_logps")
    return lambda: KTOTrainer._compute_loss(stub, model, inputs, False)  # noqa: SLF001 - the trainer's own


def _of_margins(case: Case, model: Any, beside: Any) -> Step:
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    trainer = {"ORPO": ORPOTrainer, "CPO": CPOTrainer}[case.method]
    rows = case.words["per_device_train_batch_size"]
    inputs = {
        f"{kind}_{name}": _ones(rows, case.length)
        for kind in ("chosen", "rejected")
        for name in ("input_ids", "attention_mask", "labels")
    }
    own = {"ORPO": "odds_ratio_loss", "CPO": "cpo_loss"}[case.method]
    names = ("concatenated_inputs", "concatenated_forward", "get_batch_logps", "get_batch_loss_metrics", own)
    stub = _with_methods(_stub(case, model, beside), trainer, *names)
    return lambda: trainer.compute_loss(stub, model, inputs)


def _of_rewards(case: Case, model: Any, beside: Any) -> Step:
    from trl.trainer.reward_trainer import RewardTrainer

    rows = 2 * case.words["per_device_train_batch_size"]
    inputs = {name: _ones(rows, case.length) for name in ("input_ids", "attention_mask")}
    stub = _stub(case, model, beside)
    return lambda: RewardTrainer.compute_loss(stub, model, inputs)


def _of_students(case: Case, model: Any, beside: Any) -> Step:
    from trl.experimental.gkd import GKDTrainer

    rows = case.words["per_device_train_batch_size"]
    inputs = {name: _ones(rows, case.length) for name in ("input_ids", "attention_mask", "labels")}
    stub = _with_methods(_stub(case, model, beside), GKDTrainer, "generalized_jsd_loss")
    return lambda: GKDTrainer.compute_loss(stub, model, inputs)


def _of_policies(case: Case, model: Any, beside: Any) -> Step:
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    trainer = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer}[case.method]
    rows, new = case.words["per_device_train_batch_size"], case.new
    parts = {"prompt": case.length - new, "completion": new}
    inputs = {f"{part}_{name}": _ones(rows, size) for part, size in parts.items() for name in ("ids", "mask")}
    told = ("old_per_token_logps", "ref_per_token_logps", "importance_sampling_ratio")
    inputs |= {name: _ones(rows, new).float() for name in told}
    inputs |= {name: _ones(rows, 1)[:, 0].float() for name in ("advantages", "old_logps")}
    inputs["num_items_in_batch"] = _ones(1, 1)[0, 0]
    stub = _with_methods(_stub(case, model, beside), trainer, "_get_per_token_logps_and_entropies")
    return lambda: trainer._compute_loss(stub, model, inputs)  # noqa: SLF001 - the trainer's own


def _reading(case: Case, model: Any) -> Step:
    """Log-probabilities of answers alone, of what trains or of what it is compared with."""
    import torch
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    trainer = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer}[case.method]
    rows = case.words["per_device_train_batch_size"]
    ids, mask = _ones(rows, case.length), _ones(rows, case.length)
    stub = _with_methods(_stub(case, model, None), trainer, "_get_per_token_logps_and_entropies")

    def read() -> None:
        with torch.no_grad(), disable_gradient_checkpointing(model, {"use_reentrant": False}):
            stub._get_per_token_logps_and_entropies(model, ids, mask, case.new, rows)  # noqa: SLF001 - the trainer's own

    return read


LEARNT: Mapping[str, Callable[[Case, Any, Any], Step]] = {
    "DPO": _of_pairs, "KTO": _of_marked, "ORPO": _of_margins, "CPO": _of_margins, "reward": _of_rewards, "GKD": _of_students,
    "GRPO": _of_policies, "RLOO": _of_policies,
}  # fmt: skip


def build(case: Case, plan: Any, phase: str) -> tuple[Any, Any, Step]:
    """The model, its optimizer and the pass that is traced."""
    import torch

    from memsheet.run.optimizer import build_optimizer

    model, beside = _models(case, plan)
    optimizer = build_optimizer(model.parameters(), plan, model)
    if phase in READS:
        read = _reading(case, model)

        def only_read() -> None:
            with _mode():
                read()

        return model, torch.optim.SGD(model.parameters(), lr=0.1), only_read
    loss = LEARNT[case.method](case, model, beside)
    several = min(2, int(plan.accumulation))

    def learn() -> None:
        for _ in range(several):
            with _mode():
                made = loss()
            made.backward()
            del made
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, learn


READS = ("old_log_prob", "ref")


def _import_trainers() -> None:
    """Before any trace: what packages make as they are imported is no part of one."""
    for name in TRAINERS:
        import_module(name)


TRAINERS = (
    "peft", "trl.trainer.dpo_trainer", "trl.trainer.kto_trainer", "trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer", "trl.trainer.reward_trainer",
    "trl.experimental.gkd", "trl.experimental.cpo", "trl.experimental.orpo",
)  # fmt: skip


def compared(case: Case) -> Iterator[PassRow]:
    """The passes of a case, predicted and traced."""
    _import_trainers()
    with TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        try:
            answer = job_of(case, Path(folder))
        except InputError as error:
            yield PassRow(model=case.family, name=case.name, phase="", refused=" ".join(str(error).split()))
            return
        sheet = answer.sheets[0]
        for phase in dict.fromkeys(when.phase for when in sheet.instants):
            yield _pass_row(case, answer, phase or "")


def line(row: PassRow) -> str:
    """A row as text: what is beyond the range, and what is within it and no closer than the bar."""
    head = f"{row.model:10s} {row.phase or 'step':13s} {row.name}"
    if row.refused:
        return f"{head} refused: {row.refused[:200]}"
    mark = "" if row.holds else "  IN RANGE" if row.low <= row.traced_bytes <= row.high else "  BEYOND"
    return f"{row.error:+9.3%}{mark} {row.predicted_bytes:,} of {row.traced_bytes:,} {head}"


def random_table(
    count: int, seed: int, methods: tuple[str, ...], families: tuple[str, ...], *, as_json: bool
) -> int:
    """Cases of a seed, each pass printed as it is done, and how many hold."""
    done = []
    for case in drawn_cases(count, seed, methods, families):
        for row in compared(case):
            done.append(row)
            told = {**asdict(row), "error": row.error, "holds": row.holds}
            print(json.dumps(told) if as_json else line(row), flush=True)
    if not as_json:
        run = [row for row in done if not row.refused]
        within = sum(row.low <= row.traced_bytes <= row.high or row.holds for row in run)
        held = sum(row.holds for row in run)
        counts = f"{held} within {BAR:.1%}, {within} in range"
        print(f"{len(done)} passes, {len(done) - len(run)} refused; of {len(run)} {counts}")
    return 0


def _active_role(answer: memsheet.Answer, phase: str) -> str:
    """How paths of the role begin that works in a phase, beside which others rest."""
    phases = (answer.job or {}).get("phases", ())
    return next((f"{one['active']}/" for one in phases if one["name"] == phase), "")


def _pass_row(case: Case, answer: memsheet.Answer, phase: str) -> PassRow:
    sheet = answer.sheets[0]
    gone = (Component.OPTIMIZER_STATES,) if phase in READS else ()
    role = _active_role(answer, phase) if case.method in POLICIES else ""
    ends = {
        end: {
            str(when.value).rpartition("/")[2]: tensors(sheet, when, end, gone, role)
            for when in sheet.instants
            if (when.phase or "") == phase
        }
        for end in ("low", "value", "high")
    }
    try:
        traced = memsheet.trace_step(lambda: build(case, answer.plan, phase)).sheets[0]
    except Exception as error:  # noqa: BLE001 - what the library's own code does not run is a row of the table
        why = " ".join(f"trace: {type(error).__name__}: {error}".split())
        return PassRow(model=case.family, name=case.name, phase=phase, refused=why)
    own = {str(when.value): tensors(traced, when, without=gone) for when in traced.instants}
    peak, when = max(own.values()), max(ends["value"], key=lambda at: ends["value"][at])
    return PassRow(
        model=case.family, name=case.name, phase=phase, traced_bytes=peak, predicted_bytes=ends["value"][when], low=max(ends["low"].values()),
        high=max(ends["high"].values()),
        instants={at: (ends["value"].get(at, 0), own.get(at, 0)) for at in dict.fromkeys((*ends["value"], *own))},
    )  # fmt: skip
