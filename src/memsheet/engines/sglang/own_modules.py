"""Where SGLang's own modules are not those of the library: layers that read an earlier one's keys and values
(Gemma 3n, Gemma 4) have projections and a place in the pools all the same, and some tables are whole on every
rank.
"""

from __future__ import annotations

from memsheet.formulas.serving.loaded import with_blocks, with_own_projections
from memsheet.frozen import replace
from memsheet.plan.model import Attention, Block, Mixer, ModelSpec, Tower, Weight
from memsheet.references import SGLANG, formula

WHOLE_TABLES = frozenset(
    f"{name}{text}" for name in ("gemma3", "gemma3n", "gemma4", "gemma4_unified") for text in ("", "_text")
)
"""Families whose tables of words are torch's own embeddings, neither padded nor cut (v0.5.23
models/gemma3_causal.py:532 Gemma3TextScaledWordEmbedding, which gemma3n_causal.py:62 and gemma4_causal.py:88
take over).
"""
WHOLE_PROJECTIONS = {
    "per_layer_model_projection": WHOLE_TABLES - {"gemma3n", "gemma3n_text"},
    "embed_vision.embedding_projection": frozenset({"gemma3n"}),
    "embed_audio.embedding_projection": frozenset({"gemma3n"}),
}
"""ReplicatedLinear: v0.5.23 models/gemma4_causal.py:908, models/gemma3n_mm.py:95."""
TOWER_CUTS = {
    "gemma3n_audio": {
        0: ("q_proj", "k_proj", "v_proj", "pos_proj", "ffw_layer_1", "linear_start"),
        1: ("attention.post", "ffw_layer_2", "linear_end", "input_proj_linear"),
    }
}
"""By a tower's layers, modules that are cut by rows and by columns (v0.5.23 models/gemma3n_audio.py:154, 308,
594, 637, 685-692, 731-756).
"""


def as_built(spec: ModelSpec) -> ModelSpec:
    """The model as SGLang's own modules make it."""
    return _with_own_towers(_with_whole_tables(with_unshared_layers(spec)))


@formula(
    cites=SGLANG,
    at="v0.5.23 models/gemma3_causal.py:532 torch.nn.Embedding, whole on every rank",
)
def _with_whole_tables(spec: ModelSpec) -> ModelSpec:
    if spec.model_type not in WHOLE_TABLES:
        return spec
    names = [f"{name}.weight" for name, kinds in WHOLE_PROJECTIONS.items() if spec.model_type in kinds]

    def whole(weights: tuple[Weight, ...], *, every: bool = False) -> tuple[Weight, ...]:
        return tuple(
            replace(weight, cut=None, units=0, padded=False)
            if every or any(weight.path.endswith(name) for name in names)
            else weight
            for weight in weights
        )

    return replace(
        spec,
        embeddings=replace(spec.embeddings, weights=whole(spec.embeddings.weights, every=True)),
        extras=whole(spec.extras),
        towers=tuple(replace(tower, projector=whole(tower.projector)) for tower in spec.towers),
    )


def _with_own_towers(spec: ModelSpec) -> ModelSpec:
    return replace(spec, towers=tuple(map(_own_tower, spec.towers))) if spec.towers else spec


def _own_tower(tower: Tower) -> Tower:
    kinds = [block.kind for run in tower.stack.runs for block in run.pattern]
    by_dimension = next((TOWER_CUTS[kind] for kind in kinds if kind in TOWER_CUTS), None)
    if by_dimension is None:
        return tower

    def cut(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
        found = {
            weight.path: dimension
            for weight in weights
            for dimension, names in by_dimension.items()
            if any(weight.path.endswith(f"{name}.weight") for name in names)
        }
        return tuple(replace(w, cut=found[w.path]) if w.path in found else w for w in weights)

    def block_of(block: Block) -> Block:
        ff = block.feed_forward
        return replace(
            block,
            mixers=tuple(replace(mixer, weights=cut(mixer.weights)) for mixer in block.mixers),
            feed_forward=replace(ff, weights=cut(ff.weights)) if ff else None,
            extras=cut(block.extras),
        )

    runs = tuple(replace(run, pattern=tuple(map(block_of, run.pattern))) for run in tower.stack.runs)
    return replace(tower, stack=replace(tower.stack, runs=runs), embeddings=cut(tower.embeddings))


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 models/gemma4_causal.py:358, gemma3n_causal.py:353 a projection to keys and values in "
        "every layer; configs/model_config.py:2703 get_hybrid_layer_ids: every layer has its place in a pool"
    ),
)
def with_unshared_layers(spec: ModelSpec) -> ModelSpec:
    """The model with keys and values of its own in every layer."""
    if not any(isinstance(mixer, Attention) and mixer.shares_kv for mixer in spec.mixers()):
        return spec
    return with_blocks(
        with_own_projections(spec),
        lambda block: replace(block, mixers=tuple(map(_unshared_mixer, block.mixers))),
    )


def _unshared_mixer(mixer: Mixer) -> Mixer:
    return replace(mixer, shares_kv=False) if isinstance(mixer, Attention) else mixer
