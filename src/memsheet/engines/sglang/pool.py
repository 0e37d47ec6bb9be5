"""SGLang's pools of tokens on a rank: what a token takes in layers that keep all of them and in those with a
window, of the model and of a draft.
"""

from __future__ import annotations

from memsheet.arith import Count, is_zero, rounded_down
from memsheet.engines.sglang.facts import WINDOW_SHARE
from memsheet.engines.sglang.releases import Release
from memsheet.engines.sglang.speculative import counted_layers
from memsheet.errors import input_error
from memsheet.formulas.serving.drafts import draft_of
from memsheet.formulas.serving.kv_cache import caching_layers
from memsheet.formulas.serving.sparse_index import index_token_bytes, served_token_bytes
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import INT32
from memsheet.plan.model import Attention, CrossAttention, LatentAttention, Mixer, ModelSpec, Recurrent
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Bytes of a token on one rank: in layers that keep every token, and in those with a pool for their
    window.
    """

    whole: Count
    window: Count
    reach: int  # tokens of the window
    beside: Count = 0  # that the engine counts of a draft's layers

    @property
    def counted(self) -> float:
        """What the engine divides the room by: a token of the first and its share of the second."""
        return self.beside + (self.whole + WINDOW_SHARE * self.window if self.whole else self.window)


NO_CELL = Cell(whole=0, window=0, reach=0)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 model_executor/pool_configurator.py:490 keys and values, :656 windows by a pool of their "
        "own; latents once"
    ),
)
def cell_of(part: ModelSpec, plan: Plan, release: Release) -> Cell:
    """Bytes of a token in a stage's layers. Raises InputError for what has other pools."""
    assert plan.cache.kv_dtype is not None
    whole, window, reach = 0, 0, 0
    if any(stack.role == "encoder" for stack in part.stacks):
        raise input_error(
            "model",
            part.name,
            "has an encoder, whose cache is not modelled for sglang yet",
            "--engine transformers",
        )
    for _, mixer, layers in caching_layers(part):
        if isinstance(mixer, CrossAttention):
            raise input_error(
                "model",
                part.name,
                "reads another sequence, whose cache is not modelled for sglang yet",
                "--engine transformers",
            )
        if isinstance(mixer, Recurrent):
            raise input_error(
                "model", part.name, "is of a family that sglang does not serve", "--engine transformers"
            )
        if not isinstance(mixer, Attention | LatentAttention):
            continue  # states, which have a pool of their own
        a_token = served_token_bytes(mixer, plan.cache.kv_dtype, plan.mesh.tp)
        size = layers * (a_token + index_token_bytes(mixer))
        cut = _window_pool_tokens(part, mixer, release)
        whole, window = (whole, window + size) if cut else (whole + size, window)
        reach = max(reach, cut or 0)
    return Cell(whole=whole, window=window, reach=reach)


def _window_pool_tokens(part: ModelSpec, mixer: Mixer, release: Release) -> int | None:
    """The window of a layer whose family has a pool for windows."""
    kinds = {block.kind for block in part.blocks()}
    return (
        (mixer.window or mixer.chunk) if kinds & release.windowed and isinstance(mixer, Attention) else None
    )


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 mem_cache/memory_pool.py:225: a slot more than there are tokens (a page in later "
        "releases)"
    ),
)
def pool_bytes(cell: Cell, tokens: Count, page: int) -> Count:
    """Bytes of the pools of so many tokens."""
    if is_zero(cell.whole):
        return cell.window * (tokens + page)
    windows = 0 if is_zero(cell.window) else rounded_down(tokens * WINDOW_SHARE) // page * page + page
    return cell.whole * (tokens + page) + cell.window * windows


@formula(
    cites=SGLANG,
    at=(
        "v0.4.3.post4 model_executor/model_runner.py:727: a row a request and one more, a place for each "
        "token and four"
    ),
)
def table_bytes(requests: Count, length: Count) -> Count:
    """Bytes of the table that says where each token of a request is."""
    return INT32.nbytes((requests + 1) * (length + 4))


def draft_cell(part: ModelSpec, plan: Plan, release: Release) -> Cell:
    """Bytes of a token in the layers of who drafts."""
    draft = draft_of(part, plan)
    return NO_CELL if draft is None else cell_of(draft.whole, draft.plan, release)


def cell_with_draft_count(part: ModelSpec, plan: Plan, release: Release) -> Cell:
    """The cell of a stage's own layers, with what the engine counts of a draft's."""
    own = cell_of(part, plan, release)
    layers = sum(
        count
        for _, mixer, count in caching_layers(part)
        if isinstance(mixer, Attention | LatentAttention) and not _window_pool_tokens(part, mixer, release)
    )
    return replace(own, beside=counted_layers(part, plan, own.whole // max(1, layers)))
