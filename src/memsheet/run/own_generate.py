"""A generation followed where it runs: by the library's ``generate``, or within a model's own, which reads
pictures first and then asks the library's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch

from torch import Tensor, nn

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.run.serve import Generation, begin_generation, build_cache, prompt_inputs

Followed = TypeVar("Followed")


def run_generation(
    model: nn.Module, plan: Plan, kind: str, device: str, follow: Callable[[Generation], Followed]
) -> Followed:
    """What ``follow`` makes of prompts of ``prompt_tokens`` (of ``max_model_len`` where nobody says) that are
    ready to be read, over an empty cache of the ``kind``. What a model's own ``generate`` holds is there
    meanwhile.

    Raises InputError for a model whose own ``generate`` never asks the library's.
    """
    from transformers import GenerationMixin

    given = prompt_inputs(model.config, plan, device)
    if not has_own_generate(model):
        return follow(begin_generation(model, plan, build_cache(model.config, plan, kind), given))
    found: list[Followed] = []

    def asked(inner: Any, inputs: Tensor | None = None, **words: Any) -> Tensor:
        prompt = _given_prompt(inner, inputs, words)
        generation = begin_generation(inner, plan, build_cache(inner.config, plan, kind), prompt)
        generation.given = given
        found.append(follow(generation))
        return generation.ids

    with patch.object(GenerationMixin, "generate", asked):
        model.generate(**given)  # type: ignore[operator]
    if not found:
        raise input_error(
            "model_type", type(model).__name__, "has a generate of its own, which is not followed"
        )
    return found[0]


def has_own_generate(model: nn.Module) -> bool:
    """Whether a model generates by other code than the library's."""
    from transformers import GenerationMixin

    own: Any = getattr(type(model), "generate", GenerationMixin.generate)
    return own is not GenerationMixin.generate


def _given_prompt(model: Any, inputs: Tensor | None, words: dict[str, Any]) -> dict[str, Any]:
    """What a model's forward is given of the words of a ``generate``."""
    _, given = model._prepare_generation_config(words.pop("generation_config", None), **words)
    read, name, given = model._prepare_model_inputs(inputs, None, given)
    return {key: value for key, value in {**given, name: read}.items() if value is not None}
