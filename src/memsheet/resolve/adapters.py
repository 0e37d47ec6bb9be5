"""What trains beside a model: kind, rank, targets."""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.defaults import RANKLESS
from memsheet.plan.dtypes import FP32, DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import Adapter, AdapterKind

with late_functions(__name__):
    from memsheet.plan.adapter_targets import norms_of, targets_of


def adapter_of(gaps: RequestResolver, model: ModelSpec | None, engine: Engine) -> Adapter | None:
    """The adapter that is asked for: matrices of some rank, or prompts."""
    rank, asked = gaps.request.get("adapter.rank"), gaps.request.get("adapter.kind")
    if rank is None and asked not in RANKLESS:
        return None
    kind = gaps.choice("adapter.kind", AdapterKind.LORA, engine.adapters, engine.name, silent=True)
    if kind.before_text or kind.before_keys:
        return _resolve_prompt_tuning(gaps, model, kind)
    copies_norms = kind is AdapterKind.LN_TUNING  # in the dtype of the norms, see ``in_base_dtype``
    dtype = dtype_named(gaps.get("adapter.dtype", _usual_dtype(gaps, engine), silent=copies_norms))
    assert dtype is not None
    if kind.prompts:
        return _resolve_prompt_adapter(gaps, kind, dtype)
    others = ("adapter.prompt_length", "adapter.start_layer", "adapter.encoder_width", "adapter.block_size")
    undropped = ("adapter.dropout",) if kind in LINEAR_ALONE else ()
    ranked = undropped if kind.ranked else ("adapter.rank", "adapter.dropout")
    for key in (*(other for other in others if other != OWN_KEYS.get(kind)), *ranked):
        if gaps.request.get(key):
            gaps.wrong(key, gaps.request[key], f"has no meaning for {kind.value}", "leave it out")
    targets = norms_of(gaps, model, kind) if copies_norms else targets_of(gaps, model, engine, kind)
    if kind in LINEAR_ALONE and model is not None and _transposed(model, targets):
        gaps.wrong("adapter.kind", kind.value, f"is not made by peft on the layers of {model.name}", "lora")
    _check_ends(gaps, targets)
    return Adapter(
        kind=kind,
        rank=rank or 0,
        targets=targets,
        dtype=dtype,
        full_modules=_full_modules(gaps, model),
        dropout=float(gaps.get("adapter.dropout", 0.0, silent=True)),
        block_size=gaps.get("adapter.block_size", BLOCK_SIZE) if kind is AdapterKind.OFT else 0,
    )


def _usual_dtype(gaps: RequestResolver, engine: Engine) -> str:
    """The engine's own; where that is the model's, which it casts whole, the one that is asked for it."""
    asked = gaps.request.get("precision.parameters")
    return str(asked) if asked and engine.adapter_dtype != FP32.name else engine.adapter_dtype


def in_base_dtype(gaps: RequestResolver, adapter: Adapter, base: DType) -> Adapter:
    """An adapter in the dtype that peft makes it in: copies of norms have that of the norms
    (tuners/ln_tuning/model.py:130-134), every other's is its own.
    """
    if adapter.kind is not AdapterKind.LN_TUNING:
        return adapter
    if (asked := gaps.request.get("adapter.dtype")) and dtype_named(asked) is not base:
        gaps.wrong("adapter.dtype", asked, "is not what copies of norms have", base.name)
    return replace(adapter, dtype=base)


def _check_ends(gaps: RequestResolver, targets: tuple[str, ...]) -> None:
    """Adapters of the output projection beside a loss that is handed its matrix (Liger takes
    ``lm_head.weight``, the frozen one: linkedin/Liger-Kernel ead96b6 transformers/model/llama.py:183-197),
    and of modules of which a copy is trained.
    """
    if "lm_head" in targets and gaps.request.get("loss") not in (None, "plain"):
        why = "is not modelled with adapters of the output projection: it takes the frozen matrix alone"
        gaps.wrong("loss", gaps.request["loss"], why, "plain")
    for name in set(targets) & set(gaps.request.get("adapter.full_modules") or ()):
        gaps.wrong("adapter.targets", name, "is trained whole already", "leave it out")


def _transposed(model: ModelSpec, targets: tuple[str, ...]) -> bool:
    """Whether a target is a layer that keeps its matrix transposed, which is no torch.nn.Linear (Conv1D)."""
    weights = (weight for block in model.blocks() for weight in block.weights if weight.transposed)
    return any(weight.path.removesuffix(".weight").rpartition(".")[2] in targets for weight in weights)


LINEAR_ALONE = (AdapterKind.OFT, AdapterKind.LOHA, AdapterKind.LOKR)
"""Kinds that peft makes on torch.nn.Linear, and on none that keeps its matrix transposed
(tuners/lycoris_utils.py LycorisTuner.layers_mapping).
"""
OWN_KEYS = {AdapterKind.OFT: "adapter.block_size"}
BLOCK_SIZE = 32
"""Inputs that are rotated together (peft 0.21.2 tuners/oft/config.py:112, oft_block_size)."""
MADE_BY_NETWORK = (AdapterKind.P_TUNING, AdapterKind.PROJECTED_PREFIX)
PROMPT_LENGTH, START_LAYER = 10, 2
"""Learned positions, and the first layer that has them (Lightning-AI/litgpt, litgpt/adapter.py, Config)."""


def _resolve_prompt_adapter(gaps: RequestResolver, kind: AdapterKind, dtype: DType) -> Adapter:
    """A llama-adapter, which is on every attention by what it is; names of targets describe it."""
    for key in ("adapter.rank", "adapter.dropout", "adapter.full_modules"):
        if gaps.request.get(key):
            gaps.wrong(key, gaps.request[key], f"has no meaning for {kind.value}", "leave it out")
    length, start = gaps.get("adapter.prompt_length", PROMPT_LENGTH), gaps.request.get("adapter.start_layer")
    if start is None:
        start = START_LAYER
        gaps.assumed.append(f"adapter.start_layer = {start}")
    targets = tuple(gaps.request.get("adapter.targets") or ())
    return Adapter(kind=kind, rank=0, targets=targets, dtype=dtype, prompt_length=length, start_layer=start)


def _resolve_prompt_tuning(gaps: RequestResolver, model: ModelSpec | None, kind: AdapterKind) -> Adapter:
    """Learned tokens before every sequence, or keys and values, in fp32 whatever the base is in (peft 0.21.2
    tuners/prompt_tuning/model.py:67-100), and what makes them (tuners/p_tuning/model.py:74-121), as wide as
    the model, or as a layer's keys, where nobody says (utils/other.py:1235).
    """
    unread = (
        "adapter.rank",
        "adapter.dropout",
        "adapter.full_modules",
        "adapter.targets",
        "adapter.start_layer",
        "adapter.block_size",
        *(() if kind in MADE_BY_NETWORK else ("adapter.encoder_width",)),
    )
    for key in unread:
        if gaps.request.get(key):
            gaps.wrong(key, gaps.request[key], f"has no meaning for {kind.value}", "leave it out")
    if (dtype := gaps.request.get("adapter.dtype")) and dtype_named(dtype) is not FP32:
        gaps.wrong("adapter.dtype", dtype, "is not what peft makes prompts in", "fp32")
    length = gaps.request.get("adapter.prompt_length")
    if length is None:
        gaps.wrong("adapter.prompt_length", None, "is missing; peft has no default", "for example 20")
    if model is not None and (model.towers or len(model.stacks) > 1 or model.head.kind != "causal_lm"):
        gaps.wrong("adapter.kind", kind.value, f"is not modelled for {model.name}", "lora")
    width = 0
    if kind in MADE_BY_NETWORK:
        usual = model.hidden if model else 1
        if model is not None and kind is AdapterKind.PROJECTED_PREFIX:
            usual = max(
                (at.kv_heads * at.head_dim for at in model.mixers() if isinstance(at, Attention)), default=1
            )
        width = gaps.get("adapter.encoder_width", usual)
    return Adapter(kind=kind, rank=0, targets=(), dtype=FP32, prompt_length=length or 1, encoder_width=width)


def _full_modules(gaps: RequestResolver, model: ModelSpec | None) -> tuple[str, ...]:
    """Modules of which a copy is trained whole, by their last names: embeddings and the output projection."""
    names = tuple(gaps.request.get("adapter.full_modules") or ())
    if model is not None and names:
        known = {
            weight.path.split(".")[-2]
            for weight in (*model.embeddings.weights, *model.head.weights)
            if "." in weight.path
        }
        for name in names:
            if name not in known:
                gaps.wrong(
                    "adapter.full_modules",
                    name,
                    "is not modelled as trained whole",
                    f"modelled: {', '.join(sorted(known))}",
                )
        if model.head.tied:
            gaps.wrong(
                "adapter.full_modules",
                list(names),
                "is not modelled where embeddings and output projection are one",
                "leave it out",
            )
        if gaps.request.get("loss") not in (None, "plain"):
            gaps.wrong(
                "loss", gaps.request["loss"], "is not modelled beside modules that are trained whole", "plain"
            )
    return names
