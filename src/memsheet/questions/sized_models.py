"""A plain model of the size that a name says, in the place of one of which nothing else is known: as many
layers of the nearest plain model as come to its parameters. It is told, and no verdict is sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.catalog import find_model
from memsheet.catalog.stored_names import Storage, split_storage, storage_of_tag, stored_as
from memsheet.errors import InputError, Problem
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
    from memsheet.catalog.sized_names import nearest_plain_model, size_in_name


OF_MODEL = late_pattern(
    r"has model code of its own|is of routed experts, and \S+ has none|and \S+ has none that is padded"
)
BY_SIZE = ", by its size"
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


def in_place_of_model(model: Any, problems: Iterable[Problem]) -> tuple[SizedModel, str] | None:
    """The model of the same size that stands in for one whose layers nobody has written down for the engine,
    where that is what keeps it from a sheet; and why.
    """
    ours = (one for one in problems if one.field in ("model", "model_type") or OF_MODEL.search(one.reason))
    why = next(ours, None)
    sized = _sized_by_any_name(model) if why is not None and isinstance(model, str) else None
    return (sized, f"{why.field} = {why.value} {why.reason}") if why is not None and sized else None


def _sized_by_any_name(model: str) -> SizedModel | None:
    """By the name that it has here, where its own says no size; of the parameters that it has, where they are
    known.
    """
    found = bundled_match(model)
    sized = sized_model(model) or (sized_model(found.name) if found else None)
    entry = find_model(found.name) if found else None
    if sized is None or entry is None:
        return sized
    try:
        count = parameter_count(read_hf_config(entry["config"]))
    except InputError:
        return sized
    base = find_model(sized.base)
    assert base is not None
    held = _with_parameters(base["config"], count)
    spec = replace(held, name=sized.spec.name, source=replace(held.source, positions_open=True))
    return replace(sized, spec=spec)


def sized_model(name: str, *, stored: bool = False) -> SizedModel | None:
    """The model that stands in for one of that name, ``stored`` as that says; None where the name says no
    size.
    """
    size = size_in_name(name)
    if size is None or not LEAST_BILLIONS <= size.billions <= MOST_BILLIONS:
        return None
    base = nearest_plain_model(size)
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
