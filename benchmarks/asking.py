"""One measured case (``memsheet/cases/1``) asked of memsheet: what was predicted, or why it was refused.

Only memsheet's public functions are used, and nothing of a case's truth reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memsheet.budget import Answer, Budget, Result, judge_sheets
from memsheet.catalog import catalog_devices, find_device
from memsheet.errors import InputError
from memsheet.plan.check import flatten_document
from memsheet.plan.device import ONE_NODE, Basis, Cluster, Device, cluster_of
from memsheet.plan.engine_registry import find_engine
from memsheet.questions.accounted import answer_for_model
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Bytes, Component, Instant, Sheet, sum_byte_ranges
from memsheet.units import GIB, MIB

Case = Mapping[str, Any]

MEMORY = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "device_bytes",
    "peak_bytes_unspecified",
)  # of a counter that nobody names only where no other is said
SERVING = ("weights_bytes", "kv_cache_bytes", "kv_tokens")
BUFFERS = ("activation_bytes",)  # of an engine that reserves what it computes in
PROFILED = ("llama.cpp", "vllm")  # engines that say how much that is
SPEED = ("step_time_s", "tokens_per_s_per_gpu", "tokens_per_s")
VERDICT = "verdict"  # of a case of which only whether it fitted is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure beside its prediction; ``error`` is (predicted - measured) / measured."""

    id: str
    metric: str
    predicted: int
    low: int
    high: int
    measured: int
    inside: bool
    suspect: str
    note: str = ""

    @property
    def error(self) -> float:
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a case: rows, or the reason it was refused. ``verdict``: True right, False wrong, None
    not decided.
    """

    case: Case
    metrics: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    refused: str | None = None
    verdict: bool | None = None


def run_case(case: Case) -> Outcome:
    """Ask, compare, and never crash: what memsheet refuses comes back as a reason."""
    metrics = metrics_of(case)
    try:
        found = ask(case)
        rows = tuple(row for metric in metrics for row in rows_of(case, found, metric))
    except InputError as error:
        return Outcome(case=case, metrics=metrics, refused=reason_of(case, error))
    except Exception as error:  # noqa: BLE001 - a defect is a row of the table, not the end of it
        return Outcome(
            case=case, metrics=metrics, refused=f"defect: {type(error).__name__}: {str(error)[:60]}"
        )
    if not rows and metrics != (VERDICT,):
        return Outcome(case=case, metrics=metrics, refused=f"{metrics[0]} is not predicted yet")
    return Outcome(case=case, metrics=metrics, rows=rows, verdict=verdict_of(case, found))


def metrics_of(case: Case) -> tuple[str, ...]:
    """What a case is compared by: each counter that its source has, else its verdict alone. Speeds are
    not predicted yet: a case of speed says at least that its job fitted.
    """
    truth = case["truth"]
    memory = tuple(m for m in MEMORY[:-1] if truth.get(m) is not None) or tuple(
        m for m in MEMORY[-1:] if truth.get(m) is not None
    )
    served = tuple(
        m
        for m in (*SERVING, *(BUFFERS if case.get("plan", {}).get("engine") in PROFILED else ()))
        if truth.get(m) is not None
    )
    if "plan.quantization.weights" in case.get("unknown", ()):
        served = tuple(m for m in served if m != "weights_bytes")  # nobody says what they are stored in
    speed = next(((m,) for m in SPEED if truth.get(m) is not None), ())
    judged = truth.get("fits") is not None
    return served or memory or ((VERDICT,) if judged else speed or (VERDICT,))


def ask(case: Case) -> Answer:
    """The answer to the case's plan on the case's model and cards. Raises InputError where it is refused."""
    engine, task = case["plan"].get("engine"), case["plan"].get("task")
    if engine is not None:
        known = find_engine(engine)
        if known is None or task not in known.tasks:
            raise _RefusedError(f"engine {engine} is not modelled" + (f" for {task}" if known else ""))
    if "plan.mesh" in case.get("unknown", ()):  # what stands there is a placeholder
        raise _RefusedError("the source does not say how its cards share the model")
    spec = read_hf_config(case["config"], name=case["model"] or "model")
    request = {
        key: value
        for key, value in flatten_document(case["plan"]).items()
        if key not in ("schema", "model", "gpus")
    }
    if "plan.engine_version" in case.get("unknown", ()) and case["group"] in WHEN:
        request["engine_version"] = WHEN[case["group"]]
    request.update(SAID.get(case["id"], {}))
    if (
        request.get("seq_len_kind") == "minimum"
        and request.get("serving.prompt_tokens") is None
        and request.get("serving.output_tokens")
    ):
        request["serving.prompt_tokens"] = 1  # a prompt of a few tokens, which the length does not count
        request["serving.output_tokens"] -= 1
    return answer_for_model(spec, request, cluster_for(case["hardware"]), fix=False)


WHEN = {"deepseekllm_7b": "2023-11", "deepseekllm_67b": "2023-11"}
"""When sources that name no version measured: theirs dates from November 2023 to February 2024."""


_HALF_GIB = {"serving.attn_max_batch": 512}
SAID: Mapping[str, Mapping[str, Any]] = {
    "ikllama_deepseek-v3_kvq8_ctx32768": _HALF_GIB, "ikllama_deepseek-v3_kvf16_ub4096_ctx32768": _HALF_GIB,
}  # fmt: skip
"""Settings that a source's own log prints (attn_max_b = 512) and its case leaves out."""


class _RefusedError(InputError):
    """A refusal that needs no shortening."""

    def __init__(self, reason: str) -> None:
        super().__init__(())
        self.reason = reason


def reason_of(case: Case, error: InputError) -> str:
    """The first problem in a few words, the same for all cases that have it."""
    if isinstance(error, _RefusedError):
        return error.reason
    problem = error.problems[0]
    short = (
        problem.reason.split(",")[0]
        .split(";")[0]
        .removesuffix(" yet")
        .replace(f" of {case['model']}", " of the model")
    )
    value = problem.value if isinstance(problem.value, str | int | float) and problem.field != "model" else ""
    return " ".join(f"{problem.field} {value} {short}".split())


def cluster_for(hardware: Mapping[str, Any]) -> Cluster | None:
    """The case's cards. One that the catalogue lacks is taken by the size on its box, with the widest range
    there is for such cards.
    """
    count, known = hardware.get("count") or 1, hardware.get("device") or _listed(hardware)
    if known:
        device = find_device(known)
    elif hardware.get("memory_gb"):
        device = _by_its_box(hardware)
    else:
        return None
    return cluster_of(device, count, per_node=max(n for n in range(1, ONE_NODE + 1) if count % n == 0))


def _listed(hardware: Mapping[str, Any]) -> str | None:
    """The source's own name of a card, where the catalogue has it in that size: the list that cases are
    written with is shorter.
    """
    name = hardware.get("name") or ""
    try:
        return name if find_device(name).datasheet_bytes == (hardware.get("memory_gb") or 0) * 10**9 else None
    except InputError:
        return None


def _by_its_box(hardware: Mapping[str, Any]) -> Device:
    size = int(hardware["memory_gb"])
    seen = (
        int(hardware["usable_gib"] * GIB) if hardware.get("usable_gib") else 0
    )  # as the source's framework printed it
    gap = max(
        d.datasheet_bytes - d.framework_low_bytes for d in catalog_devices() if d.basis is Basis.DATASHEET
    )  # as the catalogue does
    return Device(
        name="unlisted",
        full_name=hardware.get("name") or "a card",
        vendor="",
        arch="",
        datasheet_bytes=size * 10**9,
        framework_bytes=seen or size * 10**9 - gap,
        framework_low_bytes=seen or size * 10**9 - gap,
        framework_high_bytes=seen or size * GIB,
        basis=Basis.DATASHEET,
        evidence="the size the source prints",
    )


# predictions ------------------------------------------------------------------------------------------------


def rows_of(case: Case, found: Answer, metric: str) -> Iterator[Row]:
    """The case's figure of ``metric`` beside its prediction: one row, or one a rank where the source lists
    ranks.
    """
    if metric == VERDICT or metric in SPEED:
        return
    listed = case["truth"].get(metric.replace("_bytes", "_by_rank_bytes"))
    if isinstance(listed, list):
        for rank, measured in enumerate(listed):
            sheet = _sheet_of_rank(found, rank)
            yield _row(
                case,
                f"{case['id']}@rank{rank}",
                metric,
                _size(case, found, metric, sheet),
                measured=measured,
                sheet=sheet,
            )
        return
    size, sheet = _scoped(case, found, metric)
    yield _row(case, case["id"], metric, size, measured=case["truth"][metric], sheet=sheet)


def _sheet_of_rank(found: Answer, rank: int) -> Sheet:
    return next((s for s in found.sheets if rank == s.rank or rank in s.same_as), found.sheets[-1])


def _scoped(case: Case, found: Answer, metric: str) -> tuple[Bytes, Sheet]:
    """The prediction over the ranks that the figure is about: one device's is the fullest one's."""
    sized = [(_size(case, found, metric, sheet), sheet) for sheet in found.sheets]
    if metric == "kv_tokens":
        return sized[0]
    match case.get("truth_scope"):
        case "sum_over_devices":
            copies = [size for size, sheet in sized for _ in range(1 + len(sheet.same_as))]
            return sum_byte_ranges(copies), max(sized, key=lambda pair: pair[0].value)[1]
        case "rank_0":
            sheet = _sheet_of_rank(found, 0)
            return _size(case, found, metric, sheet), sheet
        case _:
            return max(sized, key=lambda pair: pair[0].value)


RESIDENT = ("qwen3_transformers",)
"""Groups whose "peak" cannot be one: it grows by the cache alone, to the mebibyte, from 6,144 tokens of
prompt to 30,720, where one pass over the prompt must hold several matrices of it and a growing cache a copy
of one layer's keys. It falls when an answer ends early, so the cache is not made beforehand either. What is
left is what lies there between two passes, and that is what is compared.
"""


def _resident(case: Case, sheet: Sheet) -> Bytes:
    """Tensors between two passes while tokens are made. Keys and values of a layer may each lie in a block up
    to 1 MiB larger, which the allocator counts whole (torch c10 CUDACachingAllocator.cpp, should_split); and
    so may quantized weights, half of which are loaded into blocks of their own (transformers 4.51.3
    modeling_utils.py:5752, caching_allocator_warmup with a factor of 4).
    """
    kept = (Component.PARAMETERS, Component.BUFFERS, Component.KV_CACHE, Component.WORKSPACES)
    held = sum_byte_ranges([sheet.of(component, instant=Instant.DECODE) for component in kept])
    blocks = 2 * int(case["config"]["num_hidden_layers"]) * MIB
    if case["plan"].get("quantization"):
        blocks += int(sheet.of(Component.ALLOCATOR_SLACK, instant=Instant.LOAD).high)
    libraries = sheet.of(Component.WORKSPACES, instant=Instant.DECODE)
    return Bytes(
        int(held.value - libraries.value),
        int(held.value),
        int(held.high - libraries.high + libraries.value + blocks),
    )


def _size(case: Case, found: Answer, metric: str, sheet: Sheet) -> Bytes:
    if case["group"] in RESIDENT and metric == "peak_allocated_bytes":
        return _resident(case, sheet)
    if (
        metric == "weights_bytes" and case["plan"].get("engine") == "sglang"
    ):  # as the driver counts them: with the gaps between segments
        return sheet.of(
            Component.PARAMETERS, Component.BUFFERS, Component.ALLOCATOR_SLACK, instant=Instant.LOAD
        )
    if (
        metric == "activation_bytes" and found.serving and "budget" in found.serving
    ):  # as the engine sums it, with its libraries' workspaces
        peak: Bytes = found.serving["budget"]["peak_activation"]
        return peak
    if metric == "kv_tokens":
        tokens, serving = (found.serving or {}).get("kv_tokens", 0), found.serving or {}
        return Bytes(serving.get("kv_tokens_low", tokens), tokens, serving.get("kv_tokens_high", tokens))
    if metric == "device_bytes" and case["hardware"].get("context_bytes"):
        return sheet.reserved + Bytes.exact(
            case["hardware"]["context_bytes"]
        )  # the source printed the process without its model
    return _SIZES[metric](sheet)


_SIZES: dict[str, Callable[[Sheet], Bytes]] = {
    "peak_allocated_bytes": lambda sheet: sheet.allocated,
    "peak_reserved_bytes": lambda sheet: sheet.reserved,
    "device_bytes": lambda sheet: sheet.device,
    # nobody said which counter: the value is that of tensors, the range reaches to what the driver shows
    "peak_bytes_unspecified": lambda sheet: Bytes(
        sheet.allocated.low, sheet.allocated.value, sheet.device.high
    ),
    "weights_bytes": lambda sheet: sheet.of(Component.PARAMETERS, Component.BUFFERS, instant=Instant.LOAD),
    "kv_cache_bytes": lambda sheet: sheet.of(Component.KV_CACHE, instant=Instant.DECODE).ordered,
    "activation_bytes": lambda sheet: sheet.of(Component.TEMPORARIES, instant=Instant.PREFILL),
}


def _row(case: Case, name: str, metric: str, size: Bytes, *, measured: int, sheet: Sheet) -> Row:
    half = (case.get("resolution_bytes") or 0) / 2  # a printed figure stands for all that round to it
    return Row(
        id=name,
        metric=metric,
        predicted=int(size.value),
        low=int(size.low),
        high=int(size.high),
        measured=measured,
        inside=size.low - half <= measured <= size.high + half,
        suspect=suspect(sheet, int(size.value) - measured, metric),
        note=note(case),
    )


EXACT = (
    Component.PARAMETERS,
    Component.MASTER_WEIGHTS,
    Component.GRADIENTS,
    Component.OPTIMIZER_STATES,
    Component.KV_CACHE,
)


def suspect(sheet: Sheet, gap: int, metric: str) -> str:
    """The largest component of the peak that could hold a gap that size; what can be computed exactly only
    where nothing else could.
    """
    counted = () if metric in ("device_bytes", "peak_bytes_unspecified") else (Component.CONTEXT,)
    peak = [
        (c, size.value)
        for c, size in sheet.sums()[sheet.peak_instant].items()
        if size.value and c not in counted
    ]
    able = [(c, size) for c, size in peak if size >= abs(gap) and c not in EXACT] or peak
    largest, size = max(able, key=lambda pair: pair[1])
    return f"{largest.value} at {sheet.peak_instant.value}, {size // MIB:,} MiB"


def note(case: Case) -> str:
    """Why a row may be off without anyone's fault."""
    kind = case["plan"].get("seq_len_kind")
    bound = {
        "maximum": "lengths up to seq_len: the prediction is an upper bound",
        "minimum": "lengths from seq_len: a lower bound",
    }.get(kind or "", "")
    counted = "resident tensors: no peak of one pass" if case.get("group") in RESIDENT else ""
    return "; ".join(
        filter(
            None,
            (
                bound,
                counted,
                "plan incomplete" if case.get("unknown") else "",
                "unit assumed" if case.get("unit_uncertain") else "",
            ),
        )
    )


# verdicts ---------------------------------------------------------------------------------------------------


def verdict_of(case: Case, found: Answer) -> bool | None:
    """Whether FITS or DOES NOT FIT was right; None for UNCERTAIN, and where nobody knows the card or the
    outcome.
    """
    fitted, usable = case["truth"].get("fits"), case["hardware"].get("usable_gib")
    if fitted is None:
        return None
    if usable and found.cluster:
        size = int(usable * GIB)
        verdict = judge_sheets(found.sheets, Budget(low_bytes=size, capacity_bytes=size, high_bytes=size))
    elif found.verdict is not None:
        verdict = found.verdict
    else:
        return None
    return None if verdict.result is Result.UNCERTAIN else (verdict.result is Result.FITS) == fitted
