"""What a configuration of TRL's says in a script, with the defaults of the release that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.exchange.shared.colocated_server import trl_colocated_share
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.older_keys import (
    LIGER_LOSS,
    TRAINERS_OWN,
    OlderKey,
    autocasts_by_itself,
    left_to_release,
    older_keys,
    recomputes_by_itself,
)
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.read_only_rows import positive_count
from memsheet.exchange.shared.row_lengths import USUAL_LENGTH, both_parts
from memsheet.exchange.shared.script_places import COLOCATED, OLDER_WORDS, RELEASE_DEFAULTS
from memsheet.exchange.shared.trainer_names import METHODS, SFT, SFT_OWN, SFT_TRAINER, TRAINERS
from memsheet.plan.library_defaults import own_default

OF_LOADING = "model_init_kwargs"
"""What TRL's trainers load a model of that name with, the reference and those that reward as well (the wheel
of TRL 1.10.0: trl/trainer/{sft,dpo,grpo,kto,rloo,reward}_trainer.py, create_model_from_path).
"""


def own_configuration_keys(name: str, module: Module, said: dict[str, Any]) -> dict[str, Any]:
    """What a configuration of TRL's says by fields of its own, and in ``said`` its defaults for others."""
    older = tuple(older_keys(name, {**said, **_older_argument(module)}))
    if name == SFT:
        return _sft_config_keys(said, older) | _given_to_trainer(module)
    return _method_keys(name, said, older) if name in METHODS else {}


def _older_argument(module: Module) -> dict[str, bool]:
    """That a trainer of TRL's is given what newer ones have another name for."""
    given = next(named_calls(module, TRAINERS[TRAINERS.index(SFT_TRAINER) :], local=True), {})
    return {TRAINERS_OWN: True} if TRAINERS_OWN in given else {}


def _take_release_defaults(said: dict[str, Any], older: Sequence[OlderKey]) -> dict[str, Any]:
    """In ``said`` what every configuration of TRL's has where nothing is said, in the newest release that
    takes its ``older`` keys; which keys are those.
    """
    recomputes = recomputes_by_itself(older) and own_default("trl", "gradient_checkpointing")
    said.setdefault("gradient_checkpointing", recomputes)
    if said.get("fp16") is not True and autocasts_by_itself(older):
        said.setdefault("bf16", True)
    if (fused := said.get(LIGER_LOSS)) is not None and older:
        said.setdefault("use_liger_kernel", fused)
    return {OLDER_WORDS: [one.key for one in older]} if older else {}


def _sft_config_keys(said: dict[str, Any], older: Sequence[OlderKey]) -> dict[str, Any]:
    """TRL's own fields, and in ``said`` its defaults for what is not said."""
    left = left_to_release(said, older)
    told = _take_release_defaults(said, older)
    plain = older or said.get("use_liger_kernel") is True
    usual = "nll" if plain else own_default("trl", "loss_type")
    return {
        **({} if "max_seq_length" in said else {"max_length": own_default("trl", "max_length")}),
        "loss_type": usual,
        **told,
        **({RELEASE_DEFAULTS: left} if left else {}),
        **{key: said[key] for key in SFT_OWN if key in said},
    }


CUT, OF_METHODS = ("DPO", "KTO", "ORPO", "CPO", "BCO", "Reward", "GKD", "TPO"), 1024
"""Methods whose configurations cut rows to as many tokens where nothing is said (huggingface/trl f2cd577
trl/trainer/{dpo,kto,reward,sft}_config.py, experimental/{orpo,cpo,bco,tpo}: max_length)."""


def _method_keys(name: str, said: dict[str, Any], older: Sequence[OlderKey]) -> dict[str, Any]:
    """The method of a configuration of TRL's other than SFT's, with the defaults that all of them have in
    ``said``; the length of both of its parts where it says both.
    """
    left = [at for at in left_to_release(said, older) if at != "loss_type"]
    told = _take_release_defaults(said, older)
    whole = both_parts(said) or said.get("max_length")
    share = trl_colocated_share(said)
    usual = {USUAL_LENGTH: OF_METHODS} if METHODS[name] in CUT and said.get("max_length", 0) == 0 else {}
    return {
        "method": METHODS[name],
        **told,
        **({RELEASE_DEFAULTS: left} if left else {}),
        **({"max_length": whole} if isinstance(whole, int) else usual),
        **({COLOCATED: share} if share is not None else {}),
        **({OF_LOADING: said[OF_LOADING]} if OF_LOADING in said else {}),
    }


def _given_to_trainer(module: Module) -> dict[str, Any]:
    """What TRL's trainer is given beside its configuration, before which it goes (huggingface/trl v0.12.0
    trl/trainer/sft_trainer.py:206-217, 299-303).
    """
    given = next(named_calls(module, (SFT_TRAINER,), local=True), {})
    length, packs = given.get("max_seq_length"), given.get("packing")
    return {
        **({"max_length": positive_count(length) or UNSET} if length is not None else {}),
        **({"packing": packs} if packs is not None else {}),
    }
