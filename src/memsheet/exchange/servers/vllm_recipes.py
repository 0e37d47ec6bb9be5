"""Recipes of the vLLM project: a model, its variants and the hardware they are for, as the commands that the
recipes' page makes of them (vllm-project/recipes 8959cf64 src/lib/command-synthesis.js:860-890, strategies/
single_node_tp.yaml: as many ranks as the node has cards, where no number is said).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.named_server import NamedServer
from memsheet.exchange.shared.serve_command import ALL_CARDS
from memsheet.exchange.shared.serve_pods import scalar_list, tree_of
from memsheet.patterns import late_pattern

CARDS = ("hopper", "blackwell")
"""Hardware whose arguments are of another command, of those with GPUs of NVIDIA."""
DEFAULT = "default"
_MARKS = late_pattern(r"^variants:", re.MULTILINE), late_pattern(r"^  model_id:", re.MULTILINE)


def recipe_servers(name: str, text: str, parse: Callable[[str, str], Any]) -> list[NamedServer]:
    """A server of each variant and hardware that a recipe has; none of texts of other kinds."""
    tree = tree_of(parse, name, text) if all(mark.search(text) for mark in _MARKS) else None
    if tree is None or not isinstance(tree.get("variants"), Mapping):
        return []
    return [
        NamedServer(label, line)
        for variant, held in tree["variants"].items()
        if isinstance(held, Mapping)
        for label, line in _variant_commands(str(variant), held, tree)
    ]


def _variant_commands(
    variant: str, held: Mapping[str, Any], tree: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    model = _as_mapping(tree.get("model"))
    named = held.get("model_id") or model.get("model_id")
    if not isinstance(named, str):
        return
    own = held.get("extra_args") if variant != DEFAULT else ()
    first = [*_scalar_words(model.get("base_args")), *_scalar_words(own)]
    last = [*_rank_args(held, tree), *_feature_args(tree)]
    overrides = _as_mapping(tree.get("hardware_overrides"))
    for card in (
        "",
        *(one for one in CARDS if _scalar_words(_as_mapping(overrides.get(one)).get("extra_args"))),
    ):
        words = [
            "vllm",
            "serve",
            named,
            *first,
            *_scalar_words(_as_mapping(overrides.get(card)).get("extra_args")),
            *last,
        ]
        yield f"{variant} on {card}" if card else variant, shlex.join(words)


def _rank_args(variant: Mapping[str, Any], tree: Mapping[str, Any]) -> list[str]:
    """Ranks of tensor parallelism: the variant's, the recipe's, or all cards of a node."""
    strategies = _as_mapping(tree.get("strategy_overrides"))
    told = [variant.get("tp"), _as_mapping(strategies.get("single_node_tp")).get("tp")]
    ranks = next((one for one in told if isinstance(one, int)), ALL_CARDS)
    return [f"--tensor-parallel-size={ranks}"]


def _feature_args(tree: Mapping[str, Any]) -> list[str]:
    """Arguments of the features that are on unless somebody leaves them out."""
    asked = {str(one) for one in scalar_list(tree.get("opt_in_features"))}
    held = _as_mapping(tree.get("features"))
    return [
        word
        for at, one in held.items()
        if at not in asked
        for word in _scalar_words(_as_mapping(one).get("args"))
    ]


def _scalar_words(value: Any) -> list[str]:
    return [str(word) for word in scalar_list(value)]


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
