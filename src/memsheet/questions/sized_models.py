"""A plain model of the size that a name says, in the place of one of which nothing else is known: as many
layers of the nearest plain model as come to its parameters. It is told, and no verdict is sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.catalog import find_model
from memsheet.catalog.stored_names import Storage, split_storage, storage_of_tag, stored_as
from memsheet.errors import InputError, Problem
from memsheet.exchange.verdict_doubts import BY_SIZE
from memsheet.formulas.states.params import parameter_count
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.model import ModelSpec
from memsheet.readers.hf_config import read_hf_config

if TYPE_CHECKING:
    from memsheet.catalog.sized_names import NamedSize
with late_functions(__name__):
    from memsheet.catalog.names import bundled_match
    from memsheet.catalog.sized_names import nearest_plain_model, size_in_name, size_of_parameters


NO_EXPERTS = "is of routed experts, and "
OF_MODEL = late_pattern(
    rf"has model code of its own|{NO_EXPERTS}\S+ has none|and \S+ has none that is padded"
)
OF_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
"""Keys of a configuration whose layers have experts (transformers' own names of them)."""
LEAST_BILLIONS, MOST_BILLIONS = 0.01, 1500.0
LAYERS = "num_hidden_layers"


@dataclass(frozen=True, slots=True)
class SizedModel:
    """``spec``: what stands in; ``base``: the model that its layers are of; ``size``: what the name says."""

    spec: ModelSpec
    base: str
    size: NamedSize

    @property
    def words(self) -> str:
        """What stands in, for a screen."""
        count = f"{parameter_count(self.spec) / 1e9:.2f} B parameters"
        return f"a plain model of {count} ({self.spec.layers} layers of {self.base}'s)"

    @property
    def least_share(self) -> float:
        """How much of its states a model has at the least whose size is written so."""
        return min(1.0, self.size.least * 1e9 / parameter_count(self.spec))


def in_place_of_model(
    model: Any, problems: Iterable[Problem], expert_ranks: int = 1
) -> tuple[SizedModel, str] | None:
    """The model of the same size that stands in for one whose layers nobody has written down for the engine,
    where that is what keeps it from a sheet; and why. ``expert_ranks``: those among which files deal experts,
    which a model has whose configuration says any.
    """
    ours = (one for one in problems if one.field in ("model", "model_type") or OF_MODEL.search(one.reason))
    why = next(ours, None)
    if why is None or not isinstance(model, str):
        return None
    found = bundled_match(model)
    config = (find_model(found.name) or {}).get("config") if found else None
    if why.reason.startswith(NO_EXPERTS) and is_without_experts(model):
        return None
    ranks = expert_ranks if config is not None and _says_experts(config) else None
    sized = _sized_by_any_name(model, found.name if found else model, config, ranks)
    return (sized, f"{why.field} = {why.value} {why.reason}") if sized else None


def is_without_experts(model: str) -> bool:
    """Whether it is known of a model's layers that they have no experts."""
    found = bundled_match(model)
    entry = find_model(found.name) if found else None
    return entry is not None and not _says_experts(entry["config"])


def _says_experts(config: Mapping[str, Any]) -> bool:
    return any(config.get(at) for at in OF_EXPERTS)


def _sized_by_any_name(
    model: str, bundled: str, config: Mapping[str, Any] | None, expert_ranks: int | None
) -> SizedModel | None:
    """Of the parameters that it has, where they are known, else by its own name or the one it has here."""
    size = size_in_name(model) or size_in_name(bundled)
    count = _known_count(config)
    if count is not None:
        size = size_of_parameters(count, size)
    return _model_of_size(model, size, expert_ranks)


def _known_count(config: Mapping[str, Any] | None) -> int | None:
    """The parameters of a bundled configuration."""
    try:
        return parameter_count(read_hf_config(config)) if config is not None else None
    except InputError:
        return None


def sized_model(name: str, *, stored: bool = False) -> SizedModel | None:
    """The model that stands in for one of that name, ``stored`` as that says; None where the name says no
    size.
    """
    return _model_of_size(name, size_in_name(name), stored=stored)


def _model_of_size(
    name: str, size: NamedSize | None, expert_ranks: int | None = None, *, stored: bool = False
) -> SizedModel | None:
    if size is None or not LEAST_BILLIONS <= size.billions <= MOST_BILLIONS:
        return None
    base = nearest_plain_model(size, expert_ranks)
    entry = find_model(base)
    if entry is None:
        return None
    storage = _storage_in_name(name.rstrip("/")) if stored else None
    config = stored_as(entry["config"], storage) if storage else entry["config"]
    spec = _with_parameters(config, size.billions * 1e9)
    own = f"{name.rstrip('/').rpartition('/')[2]}{BY_SIZE}"
    return SizedModel(replace(spec, name=own, source=replace(spec.source, positions_open=True)), base, size)


def _storage_in_name(name: str) -> Storage | None:
    """How a checkpoint is stored, by the tag of a GGUF file behind its name or by the words at its end."""
    owner, _, last = name.rpartition("/")
    bare, _, tag = last.partition("@")
    found = split_storage(bare.lower(), owner.lower())
    return storage_of_tag(tag) if tag else found[1] if found else None


def _with_parameters(config: Mapping[str, Any], parameters: float) -> ModelSpec:
    """The model of a configuration with the number of layers that comes nearest to so many parameters."""
    whole = read_hf_config(config)
    fewer = read_hf_config({**config, LAYERS: whole.layers - 1})
    held = parameter_count(whole)
    layers = whole.layers + round((parameters - held) / (held - parameter_count(fewer)))
    return read_hf_config({**config, LAYERS: max(1, layers)})
