"""What methods of preference training hold beside what a fine-tuning of the same arguments does: several
sequences of an example at once, sequences of which logits stand beside those that are learnt from, and a copy
of the model as reference.

Lines are of huggingface/trl 016013e, under trl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import dataclass, replace


@dataclass(frozen=True, slots=True)
class Preferences:
    """A method by its name. ``rows``: sequences of an example that are learnt from; ``beside``: those of
    which whole logits, or gradients of logits, may stand beside the loss's own; ``reference``: whether a copy
    of the model gives some of them; ``own_copy``: also where adapters train, which are switched off
    otherwise; ``widened``: whether the trainer may load the copy in fp32 whatever the model is in; ``sure``:
    whether it is known that the job trains so; ``scored``: whether a head of one label stands in the place of
    the vocabulary's.
    """

    method: str
    rows: int
    beside: int = 0
    reference: bool = False
    own_copy: bool = False
    widened: bool = False
    sure: bool = True
    scored: bool = False

    @property
    def widened_by(self) -> str:
        """What the range of a job is widened by."""
        pairs = (
            f"all sequences of each example of {self.method}"
            if self.rows > 2
            else f"both sequences of each pair of {self.method}"
            if self.rows > 1
            else f"the examples of {self.method}"
        )
        beside = (
            "a reference model and its logits" if self.reference else "further logits" if self.beside else ""
        )
        return f"{pairs} and {beside}" if beside else pairs


PAIRED = ("dpo", "ipo")
"""Both sequences in one batch, and those of the reference (trainer/dpo_trainer.py:1340-1385)."""
ALONE = ("orpo", "cpo", "simpo")
"""Both in one batch without a reference; the logits of the chosen are read twice
(experimental/orpo/orpo_trainer.py:775-815, experimental/cpo/cpo_trainer.py:735-790).
"""
SCORED = ("reward", "rm", "rw")
"""Both in one batch, scored by a head of one label (trainer/reward_trainer.py)."""
ONE_LABEL = ("reward", "rw")
"""Of them those that load a model without its output matrix (trainer/reward_trainer.py: num_labels=1;
deepspeedai/DeepSpeedExamples training/DeepSpeed-Chat/dschat/utils/model/reward_model.py); a head of values
beside the matrix is another way.
"""
OF_STEPS = ("prm", "process reward")
"""One sequence, with a label for the end of each step, by a head of two (experimental/prm/prm_trainer.py)."""
METHODS: Mapping[str, Preferences] = {
    **{name: Preferences(name.upper(), 2, 2, reference=True) for name in PAIRED},
    **{name: Preferences(name.upper(), 2, 2) for name in ALONE},
    **{name: Preferences("the reward model", 2, scored=name in ONE_LABEL) for name in SCORED},
    **{name: Preferences("the process reward model", 1, scored=True) for name in OF_STEPS},
    "tpo": Preferences("TPO", 3, 3),
    "kto": Preferences("KTO", 1, 3, reference=True), "bco": Preferences("BCO", 1, 1, reference=True),
}  # fmt: skip
"""KTO has a mismatched answer of every example too, of which model and reference read the logits
(trainer/kto_trainer.py, _compute_kl_logps).
"""


def preferences_of(word: Any, **changes: Any) -> Preferences | None:
    """The method of that name, with fields in other values; None of any other method."""
    found = METHODS.get(str(word).lower())
    return None if found is None else replace(found, **changes)
