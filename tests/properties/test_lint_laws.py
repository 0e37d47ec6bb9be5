"""The lint on what memsheet writes itself: a legal plan's files never come out as ones that their engine
refuses.
"""

from typing import Any

import pytest
from strategies import model
from test_exchange_laws import ENGINES, PARSERS, asked, drawn

from memsheet.errors import InputError
from memsheet.exchange import find_format
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.joined_files import join_files
from memsheet.exchange.mistakes import Case, find_mistakes
from memsheet.exchange.plan_files import of_version, write_format_files

EACH = 40
CHOSEN = {
    "eager-attention",
    "no-sixteen-bits",
    "no-reshard",
    "files-disagree",
    "no-sequence-parallel",
    "gathered-logits",
    "states-on-every-rank",
}
"""What a plan may have chosen: said, and no reason not to start."""


def case_of(name: str, wanted: dict[str, Any], gpus: int) -> Case | None:
    form = of_version(find_format(name), wanted)
    try:
        texts = {form.file: write_format_files(form, wanted)[form.file]}
    except InputError:
        return None
    reads = {file: read_text(file, text, PARSERS) for file, text in texts.items()}
    beside = {
        key: value
        for key, value in wanted.items()
        if key[0] != "@" and key not in ("schema", "model", "gpus")
    }
    whole = join_files(reads, beside, {}, gpus)
    return Case(
        reads=reads, texts=texts, together=whole, answer=None, model=model("llama-tiny"), ask=lambda _: None
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_written_is_never_refused(engine: str) -> None:
    looked = 0
    for plan, machines in drawn(engine)[:EACH]:
        for name in ENGINES[engine]:
            case = case_of(name, asked(plan, machines), machines.count)
            found = find_mistakes(case) if case else ()
            looked += case is not None
            assert not [one for _, one in found if one.stops]
            assert {rule.id for rule, _ in found} <= CHOSEN
    assert looked > EACH // 5  # what a format cannot say is refused, and of some that is most
