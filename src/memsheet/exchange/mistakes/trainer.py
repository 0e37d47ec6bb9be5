"""Mistakes of the Trainer's arguments and of ``accelerate``: evaluation, loss, batch finding, loading and
saving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import worst_sheet
from memsheet.exchange.mistakes.case import (
    EVALUATES,
    RAISES,
    SCALES,
    TRAINERS,
    Case,
    FoundMistake,
    Rule,
    scaled_halves,
)
from memsheet.exchange.shared.script_defaults import ASK_FOR_CARDS, LAUNCHED
from memsheet.exchange.shared.script_places import LABELS_PLACE, MAPS, SCRIPT, SPREADS
from memsheet.patterns import late_pattern
from memsheet.plan.engine import Sharding
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import BF16_UNITS, is_older_device
from memsheet.sheet import Component
from memsheet.units import format_bytes

F = "fsdp_config"
_ARGUMENTS = "transformers"
_RECOMPUTES = ("gradient_checkpointing", "activation_checkpointing", f"{F}.activation_checkpointing")
_HOW = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")


def _runs_evaluation(values: Mapping[str, Any]) -> bool:
    return (
        any(values.get(at) not in ("no", False, None) for at in EVALUATES)
        or values.get("do_eval") is True
        or values.get("eval_on_start") is True
    )


def _logits_bytes(case: Case, sequences: int) -> int:
    """Logits of so many sequences, in fp32 (transformers loss/loss_utils.py:61) beside their own width."""
    if case.answer is None or case.trained is None:
        return 0
    width = {"fp32": 4}.get(case.trained.precision.compute.name, 2)
    return sequences * int(case.trained.training.seq_len) * case.answer.model.vocab * (4 + width)


def _eval_batch(values: Mapping[str, Any]) -> int:
    held = values.get("per_device_eval_batch_size", 8)
    return held if isinstance(held, int) and not isinstance(held, bool) and held > 0 else 8


def _training_only_bytes(case: Case) -> int:
    """What a rank has at its peak that evaluation does not need."""
    if case.answer is None:
        return 0
    sheet = worst_sheet(case.answer.sheets)
    held = sheet.sums()[sheet.peak_instant]
    passing = (Component.SAVED_ACTIVATIONS, Component.TEMPORARIES, Component.GRADIENTS)
    return sum(int(held[component].value) for component in passing if component in held)


def _large_evaluation(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        batch, micro = _eval_batch(values), values.get("per_device_train_batch_size", 8)
        fused = values.get("use_liger_kernel") is True or case.request.get("loss") in (
            "fused",
            "chunked",
        )  # which TRL's own is
        more = _logits_bytes(case, batch) - _training_only_bytes(case)
        if (
            _runs_evaluation(values)
            and not fused
            and isinstance(micro, int)
            and batch > micro
            and case.answer is not None
            and more > 0
        ):
            told = "8 by default" if "per_device_eval_batch_size" not in values else str(batch)
            yield FoundMistake(
                where=f"{name}: per_device_eval_batch_size",
                saves_bytes=more,
                says=(
                    f"{told}: its logits alone take {format_bytes(_logits_bytes(case, batch))}, more "
                    "than training's activations"
                ),
                cure=f"per_device_eval_batch_size: {micro}",
            )


ARGMAX = ("run_clm.py", "run_mlm.py", "run_fim.py", "run_clm_no_trainer.py", "run_mlm_no_trainer.py")
"""Examples that reduce logits to words before they are kept (huggingface/transformers v5.3.0
examples/pytorch/language-modeling/run_clm.py, preprocess_logits_for_metrics).
"""


def _keeps_no_logits(case: Case, name: str) -> bool:
    """Whether an evaluation keeps no logits: the program is known to reduce them, or the script makes no
    metrics of them.
    """
    text = case.texts.get(name, "")
    script = name.endswith(".py") and "TrainingArguments(" in text
    return (
        name.endswith(ARGMAX)
        or "preprocess_logits_for_metrics" in text
        or (script and "compute_metrics" not in text)
    )


def _predictions_stay(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(_ARGUMENTS):
        kept = (
            values.get("prediction_loss_only") is not True and values.get("eval_accumulation_steps") is None
        )
        if (
            _runs_evaluation(values)
            and kept
            and values.get("batch_eval_metrics") is not True
            and values.get("predict_with_generate") is not True  # which keeps words (trainer_seq2seq.py)
            and not values.get(LABELS_PLACE)  # a head of a few labels, whatever the model's words are
            and not _keeps_no_logits(case, name)
        ):
            each = (
                _logits_bytes(case, _eval_batch(values)) * 2 // 6
            )  # the model's own width, gathered from every rank
            ranks = case.together.gpus or 1
            size = f": {format_bytes(each * ranks)} more with every batch" if each else ""
            yield FoundMistake(
                where=f"{name}: eval_accumulation_steps",
                says=f"is not said, and with compute_metrics all predictions stay on the GPU{size}",
                cure="eval_accumulation_steps: 1, or prediction_loss_only: true",
            )


def _frequent_cache_emptying(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        every = values.get("torch_empty_cache_steps")
        if isinstance(every, int) and not isinstance(every, bool) and every < 10:
            yield FoundMistake(
                where=f"{name}: torch_empty_cache_steps",
                says=(
                    f"gives segments back and asks for them again every {every} steps: about 10 % of the time"
                ),
                cure="PYTORCH_ALLOC_CONF=expandable_segments:True",
                changes={"allocator.expandable_segments": True},
            )


def _partitions_parameters(case: Case) -> bool:
    """Whether ranks keep a part of every parameter: the third stage of ZeRO."""
    engine = find_engine(case.request.get("engine") or "")
    partitions = engine is not None and engine.sharding is Sharding.PARTITIONED
    return partitions and case.request.get("zero") == 3


def _finds_batch(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        if values.get("auto_find_batch_size") is True:
            third = _partitions_parameters(case)
            says = (
                "is not done at ZeRO-3: the Trainer refuses it"
                if third
                else "lowers the batch by a tenth until it fits, and the global batch with it"
            )
            yield FoundMistake(
                where=f"{name}: auto_find_batch_size", says=says, cure="a batch that fits, said", stops=third
            )


def _mean_of_ranks(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        if values.get("average_tokens_across_devices") is False and (case.together.gpus or 2) > 1:
            yield FoundMistake(
                where=f"{name}: average_tokens_across_devices",
                says="each rank divides its loss by its own tokens: ranks of short texts weigh more",
                cure="true, its default",
            )


def _label_smoothing_copies(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(_ARGUMENTS):
        share = values.get("label_smoothing_factor")
        if isinstance(share, int | float) and share > 0:
            micro = case.trained.last_microbatch if case.trained else 0
            yield FoundMistake(
                where=f"{name}: label_smoothing_factor",
                says="keeps the logarithms of every token's probabilities beside the logits, twice",
                cure="leave it out",
                saves_bytes=_logits_bytes(case, int(micro)) * 4 // 6 or None,
            )


def _recomputes_twice(case: Case) -> Iterator[FoundMistake]:
    """FSDP's own recompute, of the Trainer's arguments or of the launcher's file, beside the Trainer's."""
    launchers = tuple(
        f"{F}.fsdp_activation_checkpointing of {name}"
        for name, values in case.values("accelerate")
        if values.get("distributed_type") == "FSDP"
        and _is_on(values.get(f"{F}.fsdp_activation_checkpointing"))
    )
    for name, read in case.of(*TRAINERS):
        values = read.values
        row = next((row for row in read.form.keys if row.at == "gradient_checkpointing"), None)
        own = values.get("gradient_checkpointing", row.usual if row else None)
        sharded = bool(values.get("fsdp") or values.get(f"{F}.fsdp_version") or values.get("fsdp_version"))
        held = next((at for at in FSDP_RECOMPUTE if sharded and _is_on(values.get(at))), "")
        elsewhere = values.get("deepspeed")
        if _is_on(own) and (held or launchers) and not elsewhere:
            said = "" if "gradient_checkpointing" in values else f", {read.form.tested}'s default"
            yield FoundMistake(
                where=f"{name}: gradient_checkpointing",
                says=(
                    f"is on{said}, and so is {held or launchers[0]}: the Trainer refuses to start with both"
                ),
                cure="gradient_checkpointing: false",
                stops=True,
            )


FSDP_RECOMPUTE = (f"{F}.activation_checkpointing", f"{F}.fsdp_activation_checkpointing")


def is_recompute_of_fsdp(values: Mapping[str, Any]) -> bool:
    """Whether a file's own keys switch FSDP's recompute on."""
    return any(_is_on(values.get(at)) for at in FSDP_RECOMPUTE)


def _is_on(value: Any) -> bool:
    return str(value).lower() == "true"


def _spread_over_ranks(case: Case) -> Iterator[FoundMistake]:
    """A model spread over the cards that each process sees, in a job of several processes on a node."""
    launchers = [
        (name, read)
        for name, read in case.reads.items()
        if read.form.name in LAUNCHED and read.form.name not in ASK_FOR_CARDS
    ]
    counts = ((name, read.request.get("@per_node", read.request.get("@gpus"))) for name, read in launchers)
    started = next(((name, held) for name, held in counts if isinstance(held, int) and held > 1), None)
    if started is None or any(BYPASS in text or ONE_VISIBLE.search(text) for text in case.texts.values()):
        return
    for name, values in case.values(*TRAINERS):
        at = f"{SCRIPT}.{SPREADS}"
        if values.get(at) in MAPS and not values.get(f"{SCRIPT}.unsloth"):
            yield FoundMistake(
                where=f"{name}: {SPREADS}",
                says=(
                    f"spreads the layers over the cards that each of the {started[1]} processes "
                    f"of {started[0]} sees: accelerate refuses to train such a model in any distributed mode"
                ),
                cure='leave device_map out, or device_map={"": PartialState().process_index}',
                stops=True,
            )


def _scaled_halves(case: Case) -> Iterator[FoundMistake]:
    """A whole model that is loaded in fp16 and trained with the Trainer's fp16, whose scaler takes gradients
    in fp32 alone. DeepSpeed and FSDP scale by themselves; adapters are fp32 beside such a base unless their
    call says otherwise (peft 0.21.2 tuners/tuners_utils.py:2185).
    """
    beside = any(read.form.name in SCALES for read in case.reads.values())
    for name, read in case.of(_ARGUMENTS, "trl"):
        values = read.values
        clipped = values.get("max_grad_norm", 1.0)
        if (
            values.get("fp16") is True
            and read.request.get("precision.parameters") == "fp16"
            and (not ADAPTS & read.request.keys() or KEPT_HALF.search(case.texts.get(name, "")))
            and not any(map(values.get, ("deepspeed", "fsdp", f"{SCRIPT}.unsloth")))
            and not (beside or case.request.get("zero") or RAISES.search(case.texts.get(name, "")))
            and isinstance(clipped, int | float)
            and clipped > 0
        ):
            yield scaled_halves(f"{name}: fp16", read)


FORCED_FP32 = ("gemma3", "gemma4", "glm4_moe", "gpt_oss", "qwen3_5", "qwen3_moe")
"""How families begin that Unsloth trains in float32 where bf16 is missing (unslothai/unsloth-zoo ce232d6
unsloth_zoo/model_lists.py:45).
"""


def _bf16_without_units(case: Case) -> Iterator[FoundMistake]:
    """An adapter's base that Unsloth loads in fp16 on a card without bf16, and a Trainer of bf16."""
    model, answer = case.model, case.answer
    if model is None or answer is None or answer.cluster is None or model.model_type.startswith(FORCED_FP32):
        return
    for name, read in case.of(_ARGUMENTS, "trl", "unsloth"):
        values = read.values
        if (
            values.get("bf16") is True
            and values.get(f"{SCRIPT}.unsloth") is True
            and ADAPTS & read.request.keys()
            and is_older_device(answer.cluster.device, BF16_UNITS)
        ):
            yield FoundMistake(
                where=f"{name}: bf16",
                says=(
                    f"Unsloth loads the model in float16 on {answer.cluster.device.name}, which computes no "
                    "bf16, and refuses a Trainer of bf16 beside it"
                ),
                cure="fp16=True in place of bf16=True",
                stops=True,
            )


KEPT_HALF = late_pattern(r"autocast_adapter_dtype\s*=\s*False")
ADAPTS = frozenset({"adapter.rank", "adapter.kind"})


BYPASS = "ACCELERATE_BYPASS_DEVICE_MAP"
ONE_VISIBLE = late_pattern(
    r"--gpus-per-task|--gpu-bind|CUDA_VISIBLE_DEVICES\S{0,4}=\S{0,4}(?:SLURM_LOCALID|LOCAL_RANK)"
)
"""What leaves each process a single card to see."""


def _kv_cache_with_recompute(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(_ARGUMENTS):
        if values.get("use_cache") is True and any(values.get(at) is True for at in _RECOMPUTES):
            yield FoundMistake(
                where=f"{name}: use_cache",
                says=(
                    "keys and values are kept for generating, which recompute switches off with a "
                    "warning in every layer"
                ),
                cure="leave it out",
            )


def _reentrant_checkpointing(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        if any(values.get(f"{at}.use_reentrant") is True for at in _HOW):
            lora = case.request.get("adapter.rank") or case.request.get("adapter.kind")
            says = "runs backward inside backward: hooks of FSDP and DDP see a layer twice" + (
                ", and frozen embeddings give adapters no gradient" if lora else ""
            )
            yield FoundMistake(
                where=f"{name}: use_reentrant", says=says, cure="use_reentrant: false, its default"
            )


def _unsynchronised_ram_loading(case: Case) -> Iterator[FoundMistake]:
    """A word is taken for true; the launcher's default is to load on one rank."""
    for name, values in case.values("accelerate"):
        loads = values.get(f"{F}.fsdp_cpu_ram_efficient_loading", "true")
        if (
            values.get("distributed_type") == "FSDP"
            and values.get(f"{F}.fsdp_sync_module_states") is False
            and loads not in (False, None)
        ):
            yield FoundMistake(
                where=f"{name}: fsdp_sync_module_states",
                says="is false where one rank loads the weights for all: the launcher refuses it",
                cure="fsdp_sync_module_states: true",
                stops=True,
            )


def _loads_everywhere(case: Case) -> Iterator[FoundMistake]:
    for name, read in case.of("accelerate", *TRAINERS):
        values = read.values
        at, sharded = f"{F}.fsdp_cpu_ram_efficient_loading", values.get("distributed_type") == "FSDP"
        if read.form.name in TRAINERS:
            at, sharded = (
                f"{F}.cpu_ram_efficient_loading",
                bool(values.get("fsdp")) and not values.get("deepspeed"),
            )
        off = values.get(at, read.form.name not in TRAINERS)
        if sharded and str(off).lower() == "false":
            yield FoundMistake(
                where=f"{name}: {at.removeprefix(f'{F}.')}",
                says=f"each rank of a node loads the whole model into host memory{_of_node(case)}",
                cure="true: one rank loads, and the others receive",
            )


def _inits_everywhere(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("accelerate"):
        if (
            _partitions_parameters(case)
            and str(values.get("deepspeed_config.zero3_init_flag")).lower() == "false"
        ):
            yield FoundMistake(
                where=f"{name}: zero3_init_flag",
                says=f"each rank builds the whole model before it is divided{_of_node(case)}",
                cure="zero3_init_flag: true",
            )


def _of_node(case: Case) -> str:
    if case.answer is None or case.answer.cluster is None:
        return ""
    return f": {format_bytes(case.answer.parameters * 2 * case.answer.cluster.per_node)} a node in 16 bits"


def _saves_whole(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("accelerate"):
        whole = values.get(f"{F}.fsdp_state_dict_type")
        if values.get("distributed_type") == "FSDP" and str(whole).upper() in ("FULL_STATE_DICT", "1"):
            size = case.answer.parameters * 12 if case.answer else 0
            told = (
                f": {format_bytes(size)} with AdamW's moments in fp32"
                if size and not case.request.get("adapter.rank")
                else ""
            )
            yield FoundMistake(
                where=f"{name}: fsdp_state_dict_type",
                says=f"every save gathers the model and its optimizer on rank 0's host{told}",
                cure="SHARDED_STATE_DICT, and accelerate merge-weights at the end",
            )


def _one_by_one(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values(*TRAINERS):
        if values.get("optim") in ("adamw_torch", "adamw_hf") and not values.get("deepspeed"):
            yield FoundMistake(
                where=f"{name}: optim",
                says="steps through lists of tensors, with temporaries as large as the parameters",
                cure="optim: adamw_torch_fused",
                changes={"optimizer.implementation": "fused"},
            )


def _bits_without_their_adapter(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("axolotl"):
        if values.get("load_in_4bit") is True and values.get("adapter") == "lora":
            yield FoundMistake(
                where=f"{name}: load_in_4bit",
                says="is for adapter: qlora; beside lora nothing is quantized (releases to 0.12 did)",
                cure="adapter: qlora",
                changes={"quantization.weights": "nf4", "quantization.double_quant": True},
            )


def _packs_whole(case: Case) -> Iterator[FoundMistake]:
    """The sheet has them so where the files say nothing else."""
    asks = case.request.get("engine") == "fsdp2" and case.request.get("quantization.storage") == "uint8"
    for name, values in case.values(*TRAINERS) if asks else ():
        if f"{SCRIPT}.quantized" in values or values.get("load_in_4bit") or values.get("quant_bits"):
            yield FoundMistake(
                where=f"{name}: bnb_4bit_quant_storage",
                says="FSDP2 leaves four bits whole on every rank that are packed in uint8, the default",
                cure="bnb_4bit_quant_storage: bfloat16",
                changes={"quantization.storage": "bf16"},
            )


def _older_spelling(case: Case) -> Iterator[FoundMistake]:
    """What newer releases load in sixteen bits then comes on top of the sheet."""
    for name, values in case.values("llamafactory"):
        if values.get("quantization_method") == "bitsandbytes" and values.get("quantization_bit") is not None:
            whole = case.ask({"quantization.weights": None, "quantization.double_quant": None})
            now = case.answer.verdict.device.value if case.answer and case.answer.verdict else 0
            more = int(whole.verdict.device.value - now) if whole and whole.verdict and now else 0
            yield FoundMistake(
                where=f"{name}: quantization_method",
                says=(
                    "bitsandbytes is how older releases spell it; newer ones know bnb and then quantize "
                    "nothing, which is more than the sheet"
                ),
                cure="quantization_method: bnb",
                saves_bytes=more if more > 0 else None,
            )


_T, _A = "transformers 5.23.0", "accelerate 1.15.0"
TRAINER = (
    Rule(id="large-evaluation", source=f"{_T} training_args.py:438, 1128; loss/loss_utils.py:61", looks=_large_evaluation, beyond=True),
    Rule(id="predictions-on-gpu", source=f"{_T} training_args.py:450, trainer.py:3038; huggingface/transformers issue 7232", looks=_predictions_stay),
    Rule(id="empties-cache", source=f"{_T} training_args.py:352; huggingface/transformers issue 31372", looks=_frequent_cache_emptying),
    Rule(id="finds-batch", source=f"{_T} trainer.py:898-906; accelerate 1.15.0 utils/memory.py:167", looks=_finds_batch),
    Rule(id="loss-per-rank", source=f"{_T} training_args.py:266, trainer.py:2340; huggingface/transformers issue 34242", looks=_mean_of_ranks),
    Rule(id="label-smoothing", source=f"{_T} trainer_pt_utils.py:449-480", looks=_label_smoothing_copies),
    Rule(id="recomputes-twice", source=f"{_T} trainer.py:879-884; huggingface/transformers pull request 25771 (4.34)", looks=_recomputes_twice),
    Rule(id="spread-over-ranks", source=f"{_A} accelerator.py:1471-1481, 1814-1822, 4350; from accelerate 0.22 on", looks=_spread_over_ranks),
    Rule(id="scaled-fp16", source=f"{_T} trainer.py:1930, 2779; {_A} accelerator.py:566, 2946; torch 2.13.0 torch/amp/grad_scaler.py:274", looks=_scaled_halves),
    Rule(id="bf16-without-units", source="unslothai/unsloth 015bdef unsloth/models/loader.py:1250; unsloth/models/rl.py:2395", looks=_bf16_without_units),
    Rule(id="caches-and-recomputes", source=f"{_T} modeling_layers.py:98; training_args.py:345", looks=_kv_cache_with_recompute),
    Rule(id="reentrant-recompute", source=f"{_T} modeling_utils.py:3149; peft utils/other.py:229", looks=_reentrant_checkpointing),
    Rule(id="unsynchronised-loading", source=f"{_A} utils/launch.py:306", looks=_unsynchronised_ram_loading),
    Rule(id="every-rank-loads", source=f"{_A} commands/launch.py:585; {_T} training_args.py:2847", looks=_loads_everywhere),
    Rule(id="every-rank-builds", source=f"{_A} commands/launch.py:466", looks=_inits_everywhere),
    Rule(id="whole-checkpoint", source=f"{_A} utils/dataclasses.py:2058", looks=_saves_whole),
    Rule(id="list-by-list-optimizer", source="torch 2.13 optim/optimizer.py:252-257", looks=_one_by_one, only_if_saves=True),
    Rule(id="bits-without-adapter", source="axolotl-ai-cloud/axolotl 067b021 src/axolotl/loaders/model.py:712; v0.12.0 :516", looks=_bits_without_their_adapter),
    Rule(id="packs-whole", source=f"{_A} utils/fsdp_utils.py:789-811; from accelerate 1.14 on", looks=_packs_whole, only_if_saves=True),
    Rule(id="older-spelling", source="hiyouga/LLaMA-Factory ff6d4d1 src/llamafactory/model/model_utils/quantization.py:177-229", looks=_older_spelling, beyond=True),
)  # fmt: skip
