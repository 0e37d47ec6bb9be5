"""What keeps a verdict from being sure: a model beside the one the command names, what files leave open, and
how little the job may need then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result, budget_of, worst_sheet
from memsheet.exchange.shared.file_format import UNSET, FileReading
from memsheet.exchange.shared.moved_states import (
    HEAD_FLAGS,
    TOWER_FLAGS,
    freezes_weights,
    may_cap_pool,
    moves_cache_of_server,
    moves_states,
    moves_weights_of_server,
)
from memsheet.exchange.shared.preference_methods import preferences_of
from memsheet.exchange.shared.script_places import (
    FURTHER_TRAININGS,
    NO_PROMPT,
    SCRIPT,
    TOKENIZERS,
)
from memsheet.exchange.shared.serve_script import OPEN, OTHERS, unset_variables
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.exchange.shared.visible_cards import CARDS
from memsheet.formulas.states.params import tower_tensors
from memsheet.frozen import NamedTuple, dataclass, replace
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.aliases import OWN_FP16
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.names import SHORT
from memsheet.plan.workload import Serving
from memsheet.sheet import STATES, Bytes, Component, Instant, Sheet

with late_functions(__name__):
    from memsheet.plan.library_defaults import own_default


Ask = Callable[[Mapping[str, Any]], Answer | None]
BY_SIZE = ", by its size"
"""How the name ends of a model that stands in for one by its size."""
FURTHER = "a further server"
TRAININGS = "further trainings"
BY_WHICH = {
    Result.FITS: "by these it fits", Result.DOES_NOT_FIT: "by these it does not fit", Result.UNCERTAIN: "by these, too, it is uncertain",
}  # fmt: skip
SEQUENCES = {"microbatch", "serving.max_sequences", "serving.prompt_tokens"}
STORED = tuple((late_pattern(rf"(?<![a-z])(?:{words})(?![a-z])", holds=(*holds,)), form) for words, form, *holds in (
    (r"awq(?!.*int8)", "awq-int4", "awq"), (r"gptq.?(int)?8|w8a16", "gptq-int8", "gptq", "w8a16"),
    (r"gptq|w4a16|int4|autoround", "gptq-int4", "gptq", "w4a16", "int4", "autoround"), (r"nvfp4|fp4", "nvfp4", "fp4"), (r"mxfp4", "mxfp4", "mxfp4"),
    (r"mxfp8", "mxfp8", "mxfp8"), (r"fp8", "fp8", "fp8"), (r"w8a8|int8", "int8", "w8a8", "int8"), (r"bnb|4bit|nf4", "nf4", "bnb", "4bit", "nf4"),
))  # fmt: skip
"""Formats of weights by the words that checkpoints on a hub carry in their names, the first that is found."""
AUTO_LENGTHS = frozenset({"--max-model-len", "--max-total-tokens"})
"""Where the engine is to decide (-1), it takes the model's whole length if that has room, else a shorter one
(vLLM v0.33.0 v1/core/kv_cache_utils.py, _auto_fit_max_model_len): what fits whole is sure.
"""

LESSENING = late_pattern(
    r"activation_offloading$|enable_liger_kernel\b|freeze_language_model$|script\.(?:labels|frozen|unmade)$"
    r"|--(?:task|runner|convert|is-embedding|limit-mm-per-prompt|limit-mm-data-per-request)$"
    r"|--(?:language-model-only|enable-multimodal|disable-overlap-schedule)$"
    r"|optimizer\.early_step_in_backward$"
)
"""Kernels of Liger's, which keep and pass no more than what they stand for: norms keep their input and a
number a row, the gated product its two inputs, rotary embeddings and the gradient of logits are made in
place (linkedin/Liger-Kernel src/liger_kernel/ops/rms_norm.py, swiglu.py, rope.py, cross_entropy.py). What is
moved to the host is not on the card (trl/models/activation_offloading.py). A model of which a part is frozen
holds no more than one that trains whole, and one that tells some labels apart no more than one that tells a
vocabulary's tokens. A server that is shown fewer pictures at once holds no more than one that is shown as
many as a batch has room for, which is what its sheet has; SGLang leaves a share of memory to pictures alone
where it is to see, and keeps no second batch's places where none is prepared beside (sgl-project/sglang
v0.5.23 arg_groups/memory_hook.py:332, managers/overlap_utils.py). A server that hands back vectors or scores
has neither the output matrix nor a sampler (vllm-project/vllm v0.11.0 model_executor/models/adapters.py,
as_embedding_model). An optimizer that steps each parameter as its gradient is made keeps fewer gradients at
once and steps no more of them together (pytorch/torchtitan 820504e torchtitan/components/optimizer.py,
OptimizersInBackwardContainer). What fits without them fits with them.
"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a sheet's verdict may not hold for files, in words (none: it does), and the least and the most that
    a GPU is known to need with all that is open. The most is nothing where the sheet's own range holds it.
    ``movable_bytes``: of weights that may be off the card, which leave a server's cache their room.
    ``no_most``: nothing bounds what is needed with what is open.
    """

    words: str
    least_bytes: int = 0
    most_bytes: int = 0
    movable_bytes: int = 0
    no_most: bool = False


class Left(NamedTuple):
    """A request that is accounted, its answer, why that is not sure to be the files', and what of theirs
    their program passes over.
    """

    request: Mapping[str, Any]
    answer: Answer | None = None
    doubt: Doubt = Doubt("")
    assumed: tuple[str, ...] = ()


def both_doubts(first: Doubt, second: Doubt) -> Doubt:
    """Two reasons as one, with the wider range."""
    if not first.words or not second.words:
        return first if first.words else second
    least, most = min(first.least_bytes, second.least_bytes), max(first.most_bytes, second.most_bytes)
    movable = max(first.movable_bytes, second.movable_bytes)
    return Doubt(f"{first.words}; {second.words}", least, most, movable, first.no_most or second.no_most)


def widen_verdict(answer: Answer | None, doubt: Doubt) -> Answer | None:
    """The answer with a verdict that is no surer than the doubt allows: what cannot fit at its least does not
    fit, whatever is open besides.
    """
    if not doubt.words or answer is None or answer.verdict is None or answer.cluster is None:
        return answer
    verdict, least = answer.verdict, min(doubt.least_bytes, int(answer.verdict.device.low))
    denied = verdict.result is Result.DOES_NOT_FIT and (
        least == verdict.device.low or least > budget_of(answer.cluster).high_bytes
    )
    result = Result.DOES_NOT_FIT if denied else Result.UNCERTAIN
    device = replace(verdict.device, low=least, high=max(doubt.most_bytes, int(verdict.device.high)))
    off = doubt.movable_bytes or int(verdict.device.low) - least
    serving = answer.serving if denied else _with_less_missing(answer.serving, off)
    judged = replace(verdict, result=result, device=device, no_most=doubt.no_most)
    return replace(answer, verdict=judged, serving=serving)


def _with_less_missing(serving: Mapping[str, Any] | None, bytes_off: int) -> Mapping[str, Any] | None:
    """A server's facts where up to so many bytes may be off the card: what its pool lacks is then no more
    than possible.
    """
    if not serving or "short_bytes" not in serving or bytes_off <= 0:
        return serving
    short: Bytes = serving["short_bytes"]
    return {**serving, "short_bytes": replace(short, low=short.low - bytes_off)}


TOWER = late_pattern(r"visual|vision|audio|projector", re.IGNORECASE)
"""In the path of what belongs to a tower, in the library's classes of models that see or hear."""


def _engine_precision_options(answer: Answer) -> tuple[dict[str, Any], ...]:
    """Every precision that the engine of a plan trains in, those of its own configuration with them."""
    engine, fp16 = engine_of(answer.plan), OWN_FP16.get(answer.plan.engine)
    half = ({"precision.name": None, **fp16},) if fp16 is not None else ()
    return (*({"precision.name": name} for name in engine.precisions), *half)


def left_to_script(words: tuple[str, ...], request: Mapping[str, Any], answer: Answer, ask: Ask) -> Doubt:
    """What a training script decides, with the range of what it may: one sequence to as many as the Trainer
    takes by itself, and every precision.
    """
    if not words:
        return Doubt("")
    open_batch = request.get("microbatch") is None
    widths = _engine_precision_options(answer) if len(words) > open_batch else ()
    at_most = [_of_default_batch(width, ask) for width in ({}, *widths)] if open_batch else []
    needs = [one.verdict.device for one in (answer, *map(ask, widths), *at_most) if one and one.verdict]
    reach = (
        f"the range is up to {trainers_own_batch()} sequences, and more need more"
        if any(at_most)
        else "the range is of one sequence, and more need more"
    )
    said = "; ".join((*words, *([reach] if open_batch else [])))
    return Doubt(said, min(int(need.low) for need in needs), max(int(need.high) for need in needs))


def trainers_own_batch() -> int:
    """Sequences that the Trainer takes by itself."""
    return int(own_default("trl", "per_device_train_batch_size"))


def _of_default_batch(width: Mapping[str, Any], ask: Ask) -> Answer | None:
    changes = {**width, "microbatch": trainers_own_batch()}
    return ask(changes) or ask(
        {**changes, "global_batch": None}
    )  # a step's batch may not be a multiple of as many


def says_sequences_alone(reads: Iterable[FileReading], named: Iterable[str]) -> bool:
    """Whether all that is left open is how many sequences a GPU has at once, and how long prompts are: the
    sheet of one, and of the shortest, is then the least.
    """
    keys = [one.partition(" ")[0] for one in named]
    rows = {
        key: row.read(1, read.values)
        for read in reads
        for row in read.form.keys
        if (key := row.at) in keys and read.values.get(key) in (UNSET, NO_PROMPT)
    }
    return bool(keys) and all(rows.get(key, {}).keys() <= SEQUENCES and rows.get(key) for key in keys)


def least_of(answer: Answer, keys: Iterable[str]) -> int:
    """The least that a GPU may need where some keys are not accounted. Nothing that passes through a step
    lessens the states that it finds.
    """
    sheet, touched = worst_sheet(answer.sheets), list(keys)
    if not touched:
        return int(sheet.device.low)
    if isinstance(answer.plan.workload, Serving) and not any(map(moves_weights_of_server, touched)):
        return _least_of_server(answer, sheet, touched)
    if not moves_states(touched):
        return int(sheet.of(*STATES, Component.CONTEXT, instant=Instant.LOAD).low)
    if all(key in OF_TABLES or not moves_states([key]) for key in touched):
        return _without_tables(answer, sheet)
    if freezes_weights(touched):
        return int(sheet.of(Component.PARAMETERS, Component.CONTEXT, instant=Instant.LOAD).low)
    if not may_cap_pool(touched) and (share := _pool_share(answer)):
        return min(share, int(sheet.device.low))
    return int(sheet.of(Component.CONTEXT, instant=Instant.LOAD).low)


OPEN_VOCABULARY = "$.vocabulary"
OF_TABLES = (OPEN_VOCABULARY, f"{SCRIPT}.labels")
"""What leaves open how large the tables of words and the head are, and no layer."""


def _without_tables(answer: Answer, sheet: Sheet) -> int:
    """What a rank's states take of which its vocabulary, input and output, has no token: states go by the
    parameters that they are of.
    """
    states, context = (
        int(sheet.of(*held, instant=Instant.LOAD).low) for held in (STATES, (Component.CONTEXT,))
    )
    parameters = int(sheet.of(Component.PARAMETERS, instant=Instant.LOAD).low)
    tables = 2 * answer.model.vocab * answer.model.hidden * answer.plan.precision.parameters.bits // 8
    return context + states * max(0, parameters - tables) // max(1, parameters)


def _least_of_server(answer: Answer, sheet: Sheet, keys: Collection[str]) -> int:
    """What a server's flags that take no weights off leave on a card: its weights and the context where they
    may change the cache or a step, else all that the sheet has.
    """
    gone = _left_out_bytes(answer, keys)
    if not gone and not any(map(moves_cache_of_server, keys)):
        return int(sheet.device.low)
    return max(0, int(sheet.of(*STATES, Component.CONTEXT, instant=Instant.LOAD).low) - gone)


def _left_out_bytes(answer: Answer, keys: Collection[str]) -> int:
    """Bytes of the output matrix and of towers, which some flags of a server may leave out."""
    model, bits = answer.model, int(answer.plan.precision.parameters.bits)
    head = 0 if HEAD_FLAGS.isdisjoint(keys) else model.vocab * model.hidden
    return (head + (0 if TOWER_FLAGS.isdisjoint(keys) else tower_parameters(model))) * bits // 8


def tower_parameters(model: ModelSpec) -> int:
    """Parameters of towers, whether a sheet has them as such or as tensors beside the language model."""
    beside = (weight.elements * weight.copies for weight in model.extras if TOWER.search(weight.path))
    return sum(weight.elements * times for _, weight, times in tower_tensors(model)) + sum(beside)


def beside_draft(words: str, answer: Answer | None) -> Doubt:
    """The doubt of a server of whose draft nothing is known. That it does not start stays sure where its
    weights alone are more than its share of a card: what drafting changes of sequences, graphs and batches
    may leave a cache more room.
    """
    if not words or answer is None or answer.verdict is None or answer.cluster is None:
        return Doubt(words)
    sheet, serving = worst_sheet(answer.sheets), answer.serving or {}
    weights = int(sheet.of(Component.PARAMETERS, instant=Instant.LOAD).low)
    share = answer.cluster.device.framework_high_bytes * (answer.plan.cache.memory_fraction or 1)
    if answer.verdict.result is not Result.DOES_NOT_FIT or weights > share or "short_bytes" not in serving:
        return Doubt(words, int(answer.verdict.device.low), no_most=not _pool_share(answer))
    least = int(sheet.of(Component.PARAMETERS, Component.CONTEXT, instant=Instant.LOAD).low)
    return Doubt(words, least, movable_bytes=max(1, int(serving["short_bytes"].low)))


def movable_bytes(answer: Answer, keys: Iterable[str]) -> int:
    """Bytes beside its cache that keys which are not accounted may take off a server's GPU: its weights, or
    what passes through a step.
    """
    sheet, touched = worst_sheet(answer.sheets), list(keys)
    resting = int(sheet.of(*STATES, instant=Instant.LOAD).low)
    if any(map(moves_weights_of_server, touched)):
        return resting
    passing = int(sheet.device.low) - resting - int(sheet.of(Component.KV_CACHE, Component.CONTEXT).low)
    changes = any(map(moves_cache_of_server, touched))
    return _left_out_bytes(answer, touched) + (max(1, passing) if changes else 0)


def _pool_share(answer: Answer) -> int:
    """Bytes of a card that a server takes for its weights and its cache together, whatever of it weights
    leave; 0 of a job that has no such share.
    """
    fraction = answer.plan.cache.memory_fraction
    if fraction is None or answer.cluster is None or not (answer.serving or {}).get("budget"):
        return 0
    return int(answer.cluster.device.framework_low_bytes * fraction)


def another_model(served: str | None, known: ModelSpec | None, answer: Answer) -> str:
    """The command's model is not the sheet's: weights of other bits, as its name says, or other sizes.
    ``known``: the served one, if bundled.
    """
    if served is None:
        return ""
    own, model = stored_as(served), answer.model
    held = answer.plan.quantization.weights if answer.plan.quantization else None
    bits = {"awq-int4": 4, "gptq-int4": 4, "nvfp4": 4, "mxfp4": 4, "nf4": 4}.get(own, 8) if own else 0
    alike = held is not None and (int(held.bits) == bits or held.name.lower().endswith(own))
    if own and not alike:
        now = held.name if held else "weights that are not quantized"
        return f"{served} says {own} by its name, and the sheet is of {now}: --quantize {own}"
    if known is not None and _layers_and_hidden(known) != _layers_and_hidden(model):
        return f"the files name {served}, and the sheet is of {model.name}"
    return ""


def stored_as(name: str) -> str:
    """The format of weights that a checkpoint's name says, or nothing."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((form for pattern, form in STORED if pattern.search(last)), "")


def stand_in(served: str, bundled: Callable[[str], str | None]) -> str:
    """Flags that stand in for a checkpoint of a bundled model that somebody quantized, by its name; nothing
    where it says none.
    """
    form, parts = stored_as(served), served.split("-")
    known = (bundled("-".join(parts[:count])) for count in range(len(parts) - 1, 0, -1))
    found = next((name for name in known if name), None)
    return f"--model {found} --quantize {form}" if form and found else ""


def _layers_and_hidden(model: ModelSpec) -> tuple[int, int]:
    return model.layers, model.hidden


def left_open(read: FileReading, given: Mapping[str, Any], result: Result) -> Iterator[str]:
    """What a file sets that nobody accounts, less what flags say in its place."""
    for at, value in read.unmodelled:
        if at == OPEN:
            yield from _defaulted_flag_remarks(read, str(value), given)
        elif at == OTHERS:
            count, _, rest = str(value).partition("; ")
            why = f"{rest}: a sheet is of one server, and those may be on the same cards"
            yield f"{FURTHER} ({count.replace(' read', ' commands read')}; {why})"
        elif at == FURTHER_TRAININGS:
            yield f"{TRAININGS} ({value})"
        elif at == CARDS:
            yield f"that {value}"
        elif at == ACCOUNTING:
            name, _, rest = str(value).rstrip(")").partition(" (the sheet is ")
            yield f"{at} of {name} itself is not modelled: the sheet is {rest}; {BY_WHICH[result]}"
        elif value == UNSET and not _is_flag_given(read, at, given):
            yield f"{at} {UNSET}{_flag_hint(read, at)}"
        elif value in (NO_PROMPT, TOKENIZERS):
            if not _is_flag_given(read, at, given):
                yield f"{at} {value}{_flag_hint(read, at, 1024)}"
        elif at == OF_METHOD and result is Result.FITS and _adds_nothing(value):
            continue
        elif value != UNSET and not (result is Result.FITS and (at in AUTO_LENGTHS or LESSENING.match(at))):
            decides = value in _deciding_words(read, at)
            if not decides or not _is_flag_given(read, at, given):
                yield f"{at} {value}{_flag_hint(read, at, 4096) if decides else ''}"


def _deciding_words(read: FileReading, at: str) -> tuple[Any, ...]:
    """What of a key says that the engine decides."""
    return next((row.decides for row in read.form.keys if row.at == at), ())


OF_METHOD = f"{SCRIPT}.method"


def _adds_nothing(method: Any) -> bool:
    """Whether a method has no more than its rows, which are counted, and one score of each in place of logits
    (huggingface/trl f2cd577 trl/trainer/reward_trainer.py, compute_loss).
    """
    found = preferences_of(method)
    return found is not None and found.scored and not found.reference and not found.beside


def _defaulted_flag_remarks(read: FileReading, told: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Flags whose variable is given twice."""
    for one in told.split(", --"):
        at, _, text = ("--" + one.removeprefix("--")).partition(" ")
        if not _is_flag_given(read, at, given) and unset_variables(text):
            hint = _flag_hint(read, at, read.values.get(at))
            yield f"{at} {text}, to which the script gives more than one value{hint}"


def _plan_keys_of_flag(read: FileReading, at: str) -> tuple[str, ...]:
    """Keys of a plan that a flag says."""
    row = next((row for row in read.form.keys if row.at == at), None)
    return () if row is None else tuple(row.read(1, read.values))


def _is_flag_given(read: FileReading, at: str, given: Mapping[str, Any]) -> bool:
    keys = _plan_keys_of_flag(read, at)
    keys = tuple(key for key in keys if not key.startswith("@")) or keys  # cards say no degree
    return bool(keys) and any(given.get(key) is not None for key in keys)


def _flag_hint(read: FileReading, at: str, value: Any = "") -> str:
    """The flag of this program that says it."""
    flag = next((name for name, key in SHORT.items() if key in _plan_keys_of_flag(read, at)), None)
    given = f"{flag.replace('_', '-')} {value}".rstrip() if flag else ""
    return f": --{given} says it" if given else ""
