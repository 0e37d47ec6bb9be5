"""Mistakes of a script's order: what is recomputed, divided and compiled, and when the optimizer is made.
Scripts are read, never run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.exchange.mistakes.case import TRAINERS, Case, FoundMistake, Rule
from memsheet.exchange.shared.loaded_models import LOADS, bit_keywords
from memsheet.exchange.shared.python_config import named_calls, read_module
from memsheet.exchange.shared.python_module import Tree
from memsheet.exchange.shared.script_places import CLASS, LINE, SCOPE, WHOLE
from memsheet.units import format_bytes

RECOMPUTES = (
    "gradient_checkpointing_enable",
    "activation_checkpointing_enable",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
)
WRAPS = (
    "fully_shard",
    "FullyShardedDataParallel",
    "FSDP",
    "DistributedDataParallel",
    "torch.compile",
    "accelerator.prepare",
    "deepspeed.initialize",
)
DIVIDES = ("fully_shard", "FullyShardedDataParallel", "FSDP", "parallelize_module")
OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adafactor", "AdamW8bit", "Adam8bit", "PagedAdamW8bit", "Lion")
FLAT = ("FullyShardedDataParallel", "FSDP")
_NAMES = frozenset(name.rpartition(".")[2] for name in (*RECOMPUTES, *WRAPS, *OPTIMIZERS, *DIVIDES))
Lines = Mapping[str, int]


def _first_lines(text: str) -> list[Lines]:
    """For each function of a script, the line on which each name is called first; nothing of a text that is
    no Python.
    """
    found: dict[int, dict[str, int]] = {}
    try:
        for held in named_calls(read_module(text, {}), _NAMES):
            line, lines = int(held[LINE]), found.setdefault(int(held[SCOPE]), {})
            for name in {held[CLASS], held[WHOLE]}:
                lines[name] = min(line, lines.get(name, line))
    except ValueError:
        return []
    return [*found.values()]


def _script_call_lines(case: Case) -> Iterator[tuple[str, Lines]]:
    for name, read in case.reads.items():
        if name.endswith(".py") and read.form.name in ("transformers", "torchtitan", "pytorch"):
            yield from ((name, lines) for lines in _first_lines(case.texts[name]))


def _calls_out_of_order(
    lines: Lines, first: tuple[str, ...], then: tuple[str, ...]
) -> tuple[str, str] | None:
    """A name of ``first`` that is called before one of ``then``."""
    made = min((name for name in first if name in lines), key=lambda name: lines[name], default=None)
    late = max((name for name in then if name in lines), key=lambda name: lines[name], default=None)
    return (made, late) if made and late and lines[made] < lines[late] else None


def _late_recompute(case: Case) -> Iterator[FoundMistake]:
    for name, lines in _script_call_lines(case):
        first: tuple[str, ...] = (*WRAPS, *OPTIMIZERS)
        if any(
            name in lines for name in FLAT
        ):  # accelerate 1.15.0 accelerator.py: recompute inside each unit, after FSDP
            first = tuple(one for one in first if one not in FLAT)
        if found := _calls_out_of_order(lines, first, RECOMPUTES):
            yield FoundMistake(
                where=f"{name}:{lines[found[1]]}: {found[1]}",
                says=(
                    f"comes after {found[0]} of line {lines[found[0]]}: what is wrapped by then is not "
                    "recomputed inside it, and a layer is gathered twice"
                ),
                cure=f"call it before {found[0]}: recompute, then compile, then divide, then the optimizer",
            )


def _early_optimizer(case: Case) -> Iterator[FoundMistake]:
    for name, lines in _script_call_lines(case):
        if found := _calls_out_of_order(lines, OPTIMIZERS, DIVIDES):
            size = case.answer.parameters * 4 if case.answer else 0
            kept = f": {format_bytes(size)} in fp32" if size else ""
            yield FoundMistake(
                where=f"{name}:{lines[found[0]]}: {found[0]}",
                says=(
                    f"is made before {found[1]} of line {lines[found[1]]}: it steps, and keeps, the "
                    f"parameters that were not divided{kept}"
                ),
                cure=f"make it after {found[1]}",
                saves_bytes=size or None,
            )


def _bits_as_keywords(case: Case) -> Iterator[FoundMistake]:
    for name, _ in case.of("transformers"):
        for held in _from_pretrained_calls(case.texts[name]) if name.endswith(".py") else ():
            for word in bit_keywords(held):
                yield FoundMistake(
                    where=f"{name}:{held[LINE]}: {word}",
                    says=(
                        "is no keyword that from_pretrained of transformers 5 takes, which raises "
                        "TypeError; the sheet is of the BitsAndBytesConfig that 4 makes of it"
                    ),
                    cure=f"quantization_config=BitsAndBytesConfig({word}=True)",
                )


def _from_pretrained_calls(text: str) -> list[Tree]:
    """Calls that load a model of transformers."""
    return [held for held in _calls_of(text, "from_pretrained") if LOADS.search(held[WHOLE])]


def _calls_of(text: str, name: str) -> list[Tree]:
    """Calls by a name; none of a text that is no Python."""
    try:
        return [*named_calls(read_module(text, {}), (name,))]
    except ValueError:
        return []


def _duplicate_block_sizes(case: Case) -> Iterator[FoundMistake]:
    """How many blocks rotate, and how large they are: either follows from the other."""
    for name, _ in case.of(*TRAINERS, "pytorch"):
        for held in _calls_of(case.texts[name], "OFTConfig") if name.endswith(".py") else ():
            said = [held.get(at) for at in ("r", "oft_block_size")]
            if all(isinstance(size, int) and size != 0 for size in said):
                yield FoundMistake(
                    where=f"{name}:{held[LINE]}: OFTConfig",
                    says=f"has r {said[0]} and oft_block_size {said[1]}: peft raises ValueError for both",
                    cure="one of the two (r=0 beside a size)",
                    stops=True,
                )


_ORDER = "pytorch/torchtitan b5bcd76 torchtitan/models/llama3/parallelize.py:43-78"
SCRIPTS = (
    Rule(id="late-recompute", source=f"{_ORDER}: recompute, then compile, then fully_shard", looks=_late_recompute),
    Rule(id="optimizer-before-sharding", source="pytorch/torchtitan b5bcd76 torchtitan/trainer.py:479, 537: the optimizer is built of the divided model", looks=_early_optimizer),
    Rule(id="bits-as-keywords", source="transformers 5.23.0 modeling_utils.py:4279-4382: what is no key of the configuration goes to the model", looks=_bits_as_keywords),
    Rule(id="blocks-said-twice", source="huggingface/peft 5d602fd src/peft/tuners/oft/config.py:193; v0.14.0 :187", looks=_duplicate_block_sizes),
)  # fmt: skip
