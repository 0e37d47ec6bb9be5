"""What the words on a sheet mean, in short, each with where one can read more. Formulas explain themselves: see ``_formulas``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc
from pkgutil import iter_modules, walk_packages

from memsheet import references as r
from memsheet.engines import MODELLED, find_engine
from memsheet.errors import refuse
from memsheet.references import FORMULAS, Reference
from memsheet.sheet import Cited, Component, Evidence, FromCode, Instant


@dataclass(frozen=True, slots=True)
class Term:
    """One explained word."""

    name: str
    kind: str  # component, instant, word, engine, formula
    text: str
    source: str = ""


ALLOCATOR = Reference("PyTorch 2.13 CUDA caching allocator", "pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp")

_COMPONENTS: dict[Component, tuple[str, Reference | None]] = {
    Component.PARAMETERS: (
        ("The weights a rank keeps between steps, in the dtype it keeps them in. ZeRO 3 and FSDP cut them over dp_shard, tensor parallelism "
        "over tp, a pipeline by layers; adapters and buffers of the model count here too."), r.ZERO),
    Component.MASTER_WEIGHTS: (
        ("A second copy of the weights, usually fp32, that the optimizer updates when the weights themselves are kept in fewer bits. Engines "
        "that keep fp32 weights and only compute in bf16 have none."), r.ZERO),
    Component.GRADIENTS: (
        ("One value for every trained weight, from backward until the optimizer has used it; with gradient accumulation through the next "
        "forward too. Frozen weights have none."), r.ZERO),
    Component.OPTIMIZER_STATES: (
        ("What the optimizer remembers of each trained weight: two moments for Adam, one for momentum, none for plain SGD. They come into "
        "being in the first step, so a job can fail in its second step."), r.TORCH_OPTIM),
    Component.BUFFERS: ("Tensors of the model that are kept and never trained, such as masks and tables of positions.", r.TRANSFORMERS),
    Component.INPUTS: ("The batch itself: token ids, labels, masks, pixels.", None),
    Component.SAVED_ACTIVATIONS: (
        "Results of forward that backward needs. They grow with microbatch · seq_len · layers; recomputing layers keeps only their inputs.",
        r.SUBLINEAR),
    Component.TEMPORARIES: (
        "What an operation needs only while it runs: gradients of activations on their way back, the optimizer's scratch, casts.",
        r.DERIVATIVES),
    Component.AUTOGRAD_DETAIL: ("Small tensors of autograd's own bookkeeping.", None),
    Component.UNSHARDED_PARAMETERS: (
        "Weights gathered whole from the shards of other ranks while a layer runs, plus the next layer's that are fetched ahead.",
        r.TORCH_FSDP2),
    Component.COMMUNICATION: (
        "Buffers that collectives read and write: gradients being reduced, weights being gathered, copies in flight.", r.TORCH_FSDP2),
    Component.KV_CACHE: (
        ("Keys and values of every token of every sequence being served (a compressed pair for latent attention, a state of fixed size for "
        "state-space layers). It grows with sequences · length."), r.PAGED),
    Component.CUDA_GRAPHS: ("Memory that captured CUDA graphs hold for their replays.", None),
    Component.WORKSPACES: ("Scratch that libraries such as cuBLAS keep.", None),
    Component.ALLOCATOR_SLACK: (
        ("What PyTorch's allocator holds of the device beyond the bytes asked for: rounding, and gaps between tensors that no request fits "
        "(fragmentation). expandable_segments makes it smaller."), ALLOCATOR),
    Component.CONTEXT: (
        "What driver, kernels and communication libraries take outside the allocator. It shows in nvidia-smi and never in torch's counters.",
        None),
    Component.UNEXPLAINED: ("What was measured and belongs to no other row. A prediction has none.", None),
}  # fmt: skip

_INSTANTS = {
    Instant.LOAD: "While the model is put on the device, before the first step.",
    Instant.FORWARD: "The forward pass through the layers: saved activations pile up.",
    Instant.LOSS: "The head, the loss and its gradient: logits are seq_len · vocabulary wide.",
    Instant.BACKWARD: "The backward pass: gradients come into being while saved activations go.",
    Instant.OPTIMIZER_STEP: "The update: all states, and the optimizer's temporaries.",
    Instant.PREFILL: "Serving: the prompts are read and the cache is filled.",
    Instant.DECODE: "Serving: one token a sequence and pass, with a full cache.",
}

_WORDS: dict[str, tuple[str, Reference | None]] = {
    "sheet": ("What is resident on one rank: items by component and module path, at each instant of a step.", None),
    "item": ("One row of a sheet: a component, a path with layer indices folded to *, bytes at each instant, and how they are known.", None),
    "peak": ("The largest instant of a step: a maximum over instants of sums, never a sum of maxima.", None),
    "allocated": ("Bytes of tensors, as torch.cuda.max_memory_allocated counts them. The smallest of the three totals.", ALLOCATOR),
    "reserved": ("Segments that the allocator holds, as torch.cuda.max_memory_reserved counts them: allocated and allocator slack.", ALLOCATOR),
    "device": ("What nvidia-smi shows: reserved, and the context. This is what must fit, so the verdict goes by it.", None),
    "range": ("low, value and high of a size. Exactly known sizes have no range; fitted ones carry their spread, and so does the total.", None),
    "verdict": ("fits: even the high end of the device total fits. does not fit: not even the low end does. uncertain: in between.", None),
    "headroom": ("What the expected device total leaves of the capacity; rounded down.", None),
    "capacity": ("What a framework really gets of a card, less than the number on the box. `memsheet gpus` lists it with its source.", None),
    "states": ("Model states: parameters, master weights, gradients and optimizer states. They do not depend on batch or length.", r.ZERO),
    "zero": (
        ("What the dp_shard ranks split among themselves: 0 nothing, 1 optimizer states and master weights, 2 also gradients, 3 also "
        "parameters."), r.ZERO),
    "recompute": (
        "Keep less of forward and compute it again in backward. full keeps the input of each layer, for about one more forward of time.",
        r.SUBLINEAR),
    "offload": ("Keep states or activations in host memory and move them to the device when they are needed; slow over PCIe.", r.DEEPSPEED),
    "microbatch": ("Sequences that a rank takes through one forward. Saved activations and logits grow with it.", None),
    "global_batch": ("Sequences of one optimizer step over all ranks; more than microbatch · data-parallel ranks means accumulation.", None),
    "image_tokens": ("Tokens of each sequence that pictures take; a vision tower makes them of four patches each (Qwen2-VL).", None),
    "mesh": ("The degrees of parallelism: dp_replicate · dp_shard · cp · tp · pp is the number of GPUs.", None),
    "dp_replicate": ("Data-parallel ranks that each keep everything whole.", r.TORCH_DDP),
    "dp_shard": ("Data-parallel ranks that split the states according to zero.", r.ZERO),
    "tp": ("Tensor parallelism: the matrices of a layer are cut over ranks, which exchange activations in every layer.", r.MEGATRON_TP),
    "pp": ("Pipeline parallelism: each stage has some of the layers; early stages hold activations of several microbatches.", r.PIPELINE_1F1B),
    "cp": ("Context parallelism: ranks share one sequence.", None),
    "ep": ("Expert parallelism: ranks share the experts of a mixture-of-experts layer.", None),
    "attn_dp": ("Data-parallel attention of a server: groups of its tp ranks have requests and caches of their own, and share the experts.", r.SGLANG),
    "vpp": ("Chunks of the model a pipeline rank has, for an interleaved schedule.", r.PIPELINE_1F1B),
    "sequence_parallel": ("Megatron's: the regions outside tensor parallelism are split along the sequence over the tp ranks.", r.MEGATRON_SP),
    "lora": ("Small trained matrices beside frozen ones: gradients and optimizer states exist for the small ones only.", r.LORA),
    "qlora": ("LoRA on a base that is stored in four bits and made whole again operation by operation.", r.QLORA),
    "fused_loss": ("--loss plain: whole logits and their gradient exist. fused or chunked: logits are made a part at a time.", r.LIGER),
    "attention": ("eager keeps a seq_len x seq_len matrix a head for backward; sdpa and flash keep one number a row.", r.FLASH),
    "adamw_8bit": ("Adam with both moments in 8 bits, block by block; small and embedding tensors stay in 32.", r.EIGHT_BIT),
}  # fmt: skip


def find_term(name: str) -> Term:
    """The term of that name; case, dashes and spaces do not matter. Raises InputError with the nearest ones."""
    key = _key(name)
    found = _plain().get(key) or _formulas().get(key)
    if found is not None:
        return found
    near = difflib.get_close_matches(key, [*_plain(), *_formulas()], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise refuse("term", name, "is not explained here", f"{hint}`memsheet explain` lists the terms")


def term_names() -> dict[str, list[str]]:
    """Every term's name by its kind."""
    names: dict[str, list[str]] = {}
    for term in (*_plain().values(), *_formulas().values()):
        names.setdefault(term.kind, []).append(term.name)
    return names


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _cite(reference: Reference | None, at: str = "") -> str:
    if reference is None:
        return ""
    return f"{reference.title}, {reference.where}" + (f"; {at}" if at else "")


def _plain() -> dict[str, Term]:
    components = [Term(c.value, "component", text, _cite(reference)) for c, (text, reference) in _COMPONENTS.items()]
    instants = [Term(i.value, "instant", text) for i, text in _INSTANTS.items()]
    words = [Term(name, "word", text, _cite(reference)) for name, (text, reference) in _WORDS.items()]
    return {_key(term.name): term for term in (*components, *instants, *words, *_engines())}


def _engines() -> list[Term]:
    found = (find_engine(name) for name in MODELLED if _exists(name))
    return [
        Term(
            engine.name, "engine",
            f"Read at {engine.tested}. Tasks: {', '.join(engine.tasks)}. Mesh: {', '.join(engine.axes)}. "
            f"Zero: {', '.join(map(str, engine.zero))}. Precisions: {', '.join(engine.precisions)} (default {engine.default_precision}). "
            f"Offload: {', '.join(engine.offload) or 'none'}.",
            "; ".join(f"{what}: {_evidence(evidence)}" for what, evidence in engine.evidence.items()),
        )
        for engine in found if engine is not None
    ]  # fmt: skip


def _exists(engine: str) -> bool:
    return any(module.name == engine for module in iter_modules(import_module("memsheet.engines").__path__))


def _evidence(evidence: Evidence) -> str:
    match evidence:
        case Cited(reference, at):
            return _cite(reference, at)
        case FromCode(project, commit, file, line):
            return f"{project} {file}:{line} at {commit}"
        case _:
            return str(evidence)


def _formulas() -> dict[str, Term]:
    """Every formula by its bare name: what its docstring says, and what it cites. A word or component of the same name comes first."""
    package = import_module("memsheet.formulas")
    modules = {found.name: import_module(found.name) for found in walk_packages(package.__path__, "memsheet.formulas.")}
    terms = {}
    plain = _plain()
    for qualified, (reference, at) in FORMULAS.items():
        module, _, name = qualified.rpartition(".")
        key, function = _key(name).lstrip("_"), getattr(modules.get(module), name, None)
        if key not in plain:
            terms[key] = Term(name.lstrip("_"), "formula", " ".join((getdoc(function) or at).split()), _cite(reference, at))
    return terms
