"""A card that is told beside a text, and servers that share one: which share helps, and which cannot."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import modern

from memsheet import diagnose
from memsheet.diagnose.message import MAYBE, NO, YES, Cause, Cure
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.errors import InputError


def one_request(needed: float, held: float, share: float, length: int = 32768) -> str:
    most = int(held / needed * length) // 16 * 16
    return (
        f"gpu_memory_utilization={share}\nValueError: To serve at least one request with the models's max "
        f"seq len ({length}), ({needed:.2f} GiB KV cache is needed, which is larger than the available "
        f"KV cache memory ({held:.2f} GiB). Based on the available memory, "
        f"the estimated maximum model length is {most}."
    )


def share_of(found: Diagnosis) -> Cure:
    return next(cure for cure in found.cures if "larger share" in cure.change)


@pytest.mark.parametrize(("needed", "share", "card", "helps"), [
    (8.0, 0.9, "RTX 4090", NO),  # 0.07 of 23.5 GiB are 1.6, and 6 lack
    (3.5, 0.9, "RTX 4090", MAYBE),
    (3.5, 0.9, "", MAYBE),
    (8.0, 0.9, "H200", MAYBE),
    (40.0, 0.9, "", NO),  # no card that is sold has so much in 0.07 of it
    (8.0, 0.97, "", NO),
])  # fmt: skip
@pytest.mark.parametrize("typed", [True, False])
def test_a_larger_share_has_to_hold_what_lacks(
    needed: float, share: float, card: str, helps: str, typed: bool
) -> None:
    """Of the card that is known: by its name in the text, or by the flag beside it."""
    text = one_request(needed, 2.0, share)
    found = (
        diagnose(text, gpus=f"1x{card}".replace(" ", ""))
        if typed and card
        else diagnose_texts({"log": f"{text}\n{card}"})
    )
    cure = share_of(found)
    assert cure.helps == helps
    if helps == MAYBE and card:
        assert float(cure.where.split()[-1]) <= 0.97


def test_one_screen_has_one_limit() -> None:
    found = diagnose_texts({"log": one_request(6.0, 1.3, 0.9)})
    limit = found.cures[0].where.split()[-1]
    assert found.cures[0].helps == YES
    assert f"hold {int(limit):,} tokens" in found.arithmetic[0]


def test_cards_alone_are_no_plan() -> None:
    text = "allocating 30210.00 MiB on device 0: cudaMalloc failed: out of memory"
    assert diagnose(text).cause is Cause.UNKNOWN
    assert diagnose(text, gpus="1xRTX4090").cause is Cause.REAL_NEED
    with pytest.raises(InputError):
        diagnose(text, gpus="1xNOSUCHCARD")


@pytest.mark.parametrize("options", [{}, {"engine": "vllm"}])
def test_a_server_s_message_is_asked_of_a_server(options: dict[str, str]) -> None:
    found = diagnose(one_request(6.0, 1.3, 0.9), model="llama-3.1-8b", gpus="1xRTX4090", **options)
    assert found.answer is not None
    assert found.answer.plan.task == "infer"


SHARED = modern(
    "900.00 MiB",
    "47.40 GiB",
    "310.00 MiB",
    "25.80 GiB",
    "24.90 GiB",
    "120.00 MiB",
    others=((77, "21.25 GiB"),),
)
STAYS = (
    "the other one has to stay",
    "both belong there",
    "we cannot stop it",
    "that service must keep running",
)


@pytest.mark.parametrize("said", STAYS)
def test_a_neighbour_that_has_to_stay_is_left(said: str) -> None:
    found = diagnose_texts({"log": f"vllm serve x --gpu-memory-utilization 0.55\n{SHARED}\n{said}"})
    assert found.cause is Cause.OTHER_PROCESS
    assert not any("end or move" in cure.change for cure in found.cures)
    assert found.cures[0].where == "--gpu-memory-utilization 0.53"


@pytest.mark.parametrize("lines", [
    "vllm serve x --gpu-memory-utilization 0.55",
    "python -m sglang.launch_server --mem-fraction-static 0.55",
])  # fmt: skip
def test_a_server_beside_others_may_take_less(lines: str) -> None:
    found = diagnose_texts({"log": f"{lines}\n{SHARED}"})
    places = [cure.where for cure in found.cures if cure.helps == MAYBE]
    assert any(place.endswith("0.53") for place in places)
    assert found.cures[0].helps == YES  # the neighbour's end, which nobody rules out


@pytest.mark.parametrize("lines", ["", "vllm serve x\nLoading safetensors checkpoint shards:  20% Completed"])
def test_no_share_where_none_is_taken_yet(lines: str) -> None:
    found = diagnose_texts({"log": f"{lines}\n{SHARED}"})
    assert not any("share" in cure.change for cure in found.cures)
