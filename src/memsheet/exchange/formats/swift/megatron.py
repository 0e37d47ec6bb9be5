"""ms-swift's command over Megatron-Core (``megatron sft --model … --tensor_model_parallel_size 8``): the
arguments of Megatron-LM in the words of Python, with defaults of its own, and a model by its hub's name.

Lines are of modelscope/ms-swift at 3602360, swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.swift.commands import (
    CARDS,
    METHOD,
    METHODS,
    NODES,
    PROCESSES,
    read_processes,
    swift_flags,
    swift_preferences,
    trained_method,
)
from memsheet.exchange.formats.swift.config_files import config_file_values
from memsheet.exchange.formats.swift.names import KNOWN
from memsheet.exchange.shared.config_commands import SWIFT_MEGATRON_FILE
from memsheet.exchange.shared.file_format import Earlier, Format, Key, Moved, Values
from memsheet.exchange.shared.fused_modules import layers_of_modules
from memsheet.exchange.shared.trainers import comma_separated_names
from memsheet.frozen import replace

MEGATRON = find_format("megatron")
PROGRAM = "$.program"
"""Where the rows that are taken over look for the script's name."""
VERSION = "ms-swift 4 on Megatron-Core"
ARGS = "swift/megatron/arguments/megatron_args.py"
LAUNCHED = ("--nnodes", "--nproc-per-node")
USUAL: Mapping[str, Any] = {
    "--micro-batch-size": 1, "--global-batch-size": 16, "--recompute-granularity": "selective", "--cross-entropy-loss-fusion": True,
    "--attention-backend": "flash", "--use-distributed-optimizer": True, "--bf16": True, "--moe-token-dispatcher-type": "alltoall",
    "--attention-dropout": 0.0, "--hidden-dropout": 0.0, "--sequence-parallel": False,
    "--expert-tensor-parallel-size": 1,
}  # fmt: skip
"""What it takes where nothing is said (:482-665)."""


def _megatron_words(text: str) -> Mapping[str, Any]:
    """Flags, or the keys of the file that a command is given, in the words of Megatron-LM; those of its own,
    and of the command, as they stand.
    """
    found = config_file_values(text, megatron=True) or swift_flags(text, "megatron", SWIFT_MEGATRON_FILE)
    values = {_megatron_word(name): held for name, held in found.items()}
    return {**values, PROGRAM: "megatron"} if values else {}


def _megatron_word(name: str) -> str:
    word = f"--{name.replace('_', '-')}"
    return {"--max-length": "--seq-length"}.get(word, word) if _is_megatron_key(word) else name


def _is_megatron_key(word: str) -> bool:
    return (
        word == "--max-length"
        or any(key.at == word for key in MEGATRON.keys)
        or word in MEGATRON.known | MEGATRON.unmodelled.keys()
    )


def _trains_adapter(values: Values) -> bool:
    return (values.get("tuner_type") or values.get("train_type") or "full") == "lora"


def _of_lora(key: str, *, names: bool = False) -> Any:
    return lambda value, values: (
        {key: layers_of_modules(comma_separated_names(value)) if names else value}
        if _trains_adapter(values)
        else {}
    )


def _read_only_key(at: str, back: Any, **more: Any) -> Key:
    return Key(at=at, out=lambda _: None, back=back, source=ARGS, **more)


def _read_converted(value: Any, values: Values) -> Mapping[str, Any]:
    """A checkpoint in Megatron's form, as ms-swift calls what it makes of a model (megatron-swift's quick
    start: ``swift export --to_mcore true --output_dir NAME-mcore``).
    """
    name = str(value)
    return {"@model": name.removesuffix(MCORE)} if name.endswith(MCORE) and not values.get("model") else {}


def _no_request(*_: Any) -> Mapping[str, Any]:
    return {}


def _read_dropouts(_: Any, values: Values) -> Mapping[str, Any]:
    rates = [values.get(at, 0.0) for at in DROPOUTS]
    return {"dropout": max(rates) if all(isinstance(rate, int | float) for rate in rates) else str(rates)}


def _read_row_length(value: Any, values: Values) -> Mapping[str, Any]:
    """What rows are cut to, which are filled up to the longest of their batch unless they are packed
    (modelscope/ms-swift v3.10.0 swift/megatron/utils/utils.py:308-317, get_padding_to).
    """
    kind = {} if values.get("packing") is True else {"?seq_len_kind": "maximum"}
    return {"seq_len": value, **kind}


MCORE = "-mcore"
DROPOUTS = ("--hidden-dropout", "--attention-dropout")
OWN_READING: Mapping[str, Any] = {
    "--global-batch-size": lambda value, _: {"global_batch": value}, "--seq-length": _read_row_length, **dict.fromkeys(DROPOUTS, _read_dropouts),
}  # fmt: skip
KEYS = (
    _read_only_key("model", lambda v, _: {"@model": v}), _read_only_key("--load", _read_converted), _read_only_key(PROCESSES, read_processes), _read_only_key(NODES, _no_request),
    *(
        replace(row, usual=USUAL.get(row.at, row.usual), back=OWN_READING.get(row.at, row.back))
        for row in MEGATRON.keys if row.at not in LAUNCHED
    ),
    _read_only_key("lora_rank", _of_lora("adapter.rank"), usual=8), _read_only_key("lora_dropout", _of_lora("adapter.dropout"), usual=0.05),
    _read_only_key("target_modules", _of_lora("adapter.targets", names=True), usual="all-linear"),
    _read_only_key("modules_to_save", _of_lora("adapter.full_modules", names=True)), _read_only_key("tuner_type", _no_request),
)  # fmt: skip


def _method_of(values: Values) -> Mapping[str, Any]:
    taken = {**USUAL, **values}
    return {
        METHOD: trained_method(values),
        **{at: held for at, held in MEGATRON.absent(taken).items() if at != "$.vocabulary"},
    }


TENSOR, EXPERT_TENSOR = "--tensor-model-parallel-size", "--expert-tensor-parallel-size"
OWN_LOSSES, OF_LOSS = ("grpo", "gkd", "rm"), "--cross-entropy-fusion-impl"
"""Methods whose loss is not Megatron's (swift/megatron/trainers), and what moves its logits."""


def _moved_as_there(values: Values, asked: Values) -> Iterable[Moved]:
    assert MEGATRON.moves is not None
    found = MEGATRON.moves({**USUAL, **values}, asked)
    own = trained_method(values) in OWN_LOSSES
    return [one for one in found if not (own and one.at == OF_LOSS)]


def _earlier_split(values: Values) -> Iterable[Earlier]:
    """How experts were cut where nothing is said, before the flag had a default of its own: over the ranks of
    tensor parallelism, as Megatron-LM has it (modelscope/ms-swift v3.7.0 and v3.9.0
    swift/megatron/argument/megatron_args.py).
    """
    degree = values.get(TENSOR, 1)
    if EXPERT_TENSOR not in values and isinstance(degree, int) and degree > 1:
        why = f"ms-swift before 3.9 cuts experts over the {degree} tensor-parallel ranks, too, unless "
        why += f"{EXPERT_TENSOR} says otherwise"
        yield Earlier(since=(3, 9), changes={"mesh.etp": degree}, why=why)


FORMAT = Format(
    name="swift-megatron", file="train.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, said=MEGATRON.said, marks=frozenset({METHOD}),
    parse=_megatron_words, absent=_method_of, preferences=swift_preferences, program_known=lambda _: False,
    unmodelled={
        **MEGATRON.unmodelled, METHOD: METHODS[:2], "task_type": ("causal_lm",), "freeze_llm": (False,), "freeze_vit": (True,), "freeze_aligner": (True,),
        "teacher_model": (), "ref_model": (), "reward_model": (), "use_vllm": (False,), "loss_type": (), "target_regex": (), "freeze_parameters_ratio": (0, 0.0),
        "virtual_pipeline_model_parallel_size": (1,), "colocate_groups": (),
    },
    refers=(SWIFT_MEGATRON_FILE,), moves=_moved_as_there, earlier=_earlier_split,
    known=(MEGATRON.known | KNOWN | {
        SWIFT_MEGATRON_FILE, CARDS, "rollout.*", "teacher.*", "nnodes", "teacher_kl_coef",
        "packing", "torch_dtype", "model_author", "finetune", "mcore_model", "mcore_adapter", "lora_dtype", "use_precision_aware_optimizer", "attn_impl",
        "linear_decoupled_in_proj", "offload_bridge", "merge_lora", "num_workers", "quant_method", "quant_bits", "dtype", "padding_free", "warmup_fraction",
        "gradient_accumulation_fusion", "masked_softmax_fusion", "experts_impl", "train_type", "sequence_packing_scheduler",
    }) - {key.at for key in KEYS},
)  # fmt: skip
