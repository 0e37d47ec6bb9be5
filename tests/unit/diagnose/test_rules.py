"""Each rule and each of its bounds, with figures made for it, in the words of several releases."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.unit.diagnose.corpus import brackets, modern, traced

from laws import every
from memsheet.diagnose.verdict import diagnose_texts

Figures = dict[str, int]
"""Hundredths of a GiB, as messages print them."""
CARD = 7918


def printed(hundredths: int) -> str:
    return f"{hundredths // 100}.{hundredths % 100:02d} GiB"


def as_message(of: Figures, form: str) -> str:
    """Figures as a release prints them."""
    own = of["allocated"] + of["kept"] + of.get("outside", 50)
    if form == "brackets":
        return brackets(
            printed(of["asked"]),
            printed(CARD),
            printed(of["allocated"]),
            printed(of["free"]),
            printed(of["allocated"] + of["kept"]),
        )
    others = tuple((100 + n, printed(of["others"])) for n in range(1)) if "others" in of else ()
    pools = printed(of["pools"]) if "pools" in of else None
    return modern(
        printed(of["asked"]), printed(CARD), printed(of["free"]), printed(own), printed(of["allocated"]), printed(of["kept"]),
        others=others, pools=pools, allowed=printed(of["allowed"]) if "allowed" in of else None, who="HIP" if form == "hip" else "CUDA",
        typo=form == "2.1",
    )  # fmt: skip


def verdict_of(of: Figures, form: str) -> tuple[str, set[str]]:
    found = diagnose_texts({"log": as_message(of, form)})
    return found.cause.value, {cause.value for cause in found.open_between}


def card_with(kept: int, over: int, draw: random.Random) -> Figures:
    """A card that this process fills: asked for ``over`` more than what is free and kept."""
    free = draw.randint(10, 300)
    return {
        "free": free,
        "kept": kept,
        "asked": free + kept + over,
        "allocated": CARD - free - kept - 50,
        "outside": 50,
    }


FORMS = ("modern", "2.1", "hip", "brackets")
DRAWS = range(3)


@every("form", FORMS)
@every("over", [4, 20, 150, 900])
@every("seed", DRAWS)
def test_free_and_kept_below_what_is_asked_is_a_real_need(form: str, over: int, seed: int) -> None:
    draw = random.Random(seed * 1000 + over)
    assert verdict_of(card_with(draw.choice((30, 500, 1500)), over, draw), form) == ("real_need", set())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_within_the_rounding_it_is_open(form: str, over: int) -> None:
    draw = random.Random(over)
    assert verdict_of(card_with(900, over, draw), form) == ("unknown", {"fragmentation", "real_need"})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", DRAWS)
def test_kept_that_covers_it_and_is_no_trifle_is_fragmentation(form: str, seed: int) -> None:
    draw = random.Random(seed)
    of = card_with(draw.randint(450, 3000), 0, draw)
    assert verdict_of({**of, "asked": of["free"] + draw.randint(10, of["kept"] - 10)}, form) == (
        "fragmentation",
        set(),
    )


@pytest.mark.parametrize(("over", "cause"), [(-500, "fragmentation"), (50, "real_need")])
def test_log_probabilities_are_a_real_need_where_pieces_do_not_cover_them(over: int, cause: str) -> None:
    of = card_with(kept=900, over=over, draw=random.Random(7))
    of["outside"] += 600
    of["allocated"] -= 600
    text = "\n".join((traced("compute_log_probs"), as_message(of, "modern")))
    assert diagnose_texts({"log": text}).cause.value == cause


@pytest.mark.parametrize("kept", [100, 300, 390])
def test_a_trifle_that_covers_it_is_open(kept: int) -> None:
    of = card_with(kept, 0, random.Random(kept))
    assert verdict_of({**of, "asked": of["free"] + kept // 2}, "modern") == (
        "unknown",
        {"fragmentation", "real_need"},
    )


@pytest.mark.parametrize("form", ["modern", "2.1", "hip"])
@pytest.mark.parametrize("others", [800, 2500, 6000])
def test_a_large_neighbour_comes_before_all_else_of_the_card(form: str, others: int) -> None:
    of = {
        "free": 30,
        "kept": 100,
        "allocated": CARD - others - 30 - 100 - 50,
        "outside": 50,
        "others": others,
    }
    assert verdict_of({**of, "asked": 30 + others // 2}, form) == ("other_process", set())


@pytest.mark.parametrize("others", [800, 2500])
def test_a_neighbour_whose_leaving_is_not_enough_is_not_the_cause(others: int) -> None:
    of = {"free": 30, "kept": 20, "allocated": CARD - others - 30 - 20 - 50, "outside": 50, "others": others}
    assert verdict_of({**of, "asked": others + 200}, "modern") == ("real_need", set())


@pytest.mark.parametrize("others", [200, 500])
def test_a_small_neighbour_counts_where_nothing_else_does(others: int) -> None:
    of = {"free": 30, "kept": 20, "allocated": CARD - others - 30 - 20 - 50, "outside": 50, "others": others}
    assert verdict_of({**of, "asked": 30 + others // 2}, "modern") == ("other_process", set())


@pytest.mark.parametrize("outside", [500, 1000, 3000])
def test_much_outside_the_allocator(outside: int) -> None:
    of = {"free": 30, "kept": 100, "allocated": CARD - 30 - 100 - outside, "outside": outside, "asked": 180}
    assert verdict_of(of, "modern") == ("outside_allocator", set())


@pytest.mark.parametrize("outside", [100, 290])
def test_little_outside_the_allocator_is_usual(outside: int) -> None:
    of = {"free": 30, "kept": 100, "allocated": CARD - 30 - 100 - outside, "outside": outside, "asked": 180}
    assert verdict_of(of, "modern") == ("real_need", set())


@pytest.mark.parametrize("form", ["modern", "hip"])
@pytest.mark.parametrize("over", [10, 200])
def test_a_limit_below_the_card(form: str, over: int) -> None:
    of = {"free": 5000, "kept": 10, "allocated": 1000, "asked": 500, "allowed": 1000 + 10 + 500 - over}
    assert verdict_of(of, form) == ("limit_set", set())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("free", [300, 2000, 6000])
def test_enough_free_is_no_shortage_of_the_card(form: str, free: int) -> None:
    of = {"free": free, "kept": 10, "allocated": CARD - free - 60, "asked": free - 20}
    assert verdict_of(of, form) == ("not_gpu_memory", set())


def test_as_much_free_as_asked_is_open() -> None:
    of = {"free": 1000, "kept": 10, "allocated": CARD - 1000 - 60, "asked": 1000}
    cause, between = verdict_of(of, "modern")
    assert cause == "unknown"
    assert "not_gpu_memory" in between


@pytest.mark.parametrize("form", FORMS)
def test_figures_say_what_they_may_stand_for(form: str) -> None:
    found = diagnose_texts({"log": as_message(card_with(500, 300, random.Random(1)), form)})
    for name, size in found.facts.items():
        assert size.low <= size.high, name
    assert found.missing is not None
    assert found.missing.low <= 3 * 2**30 <= found.missing.high


@pytest.mark.parametrize("make", [lambda of: of, lambda of: {**of, "pools": 100}])
def test_pools_are_part_of_what_is_allocated(make: Callable[[Figures], Figures]) -> None:
    assert verdict_of(make(card_with(500, 300, random.Random(2))), "modern") == ("real_need", set())


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (brackets("2.00 GiB", "23.69 GiB", "22.00 GiB", "1.00 GiB", "18.00 GiB"), "22.00 GiB allocated is more than the 18.00 GiB"),
        (brackets("2.00 GiB", "23.69 GiB", "20.00 GiB", "1.00 GiB", "30.00 GiB"), "30.00 GiB are reserved on a card of 23.69 GiB"),
        (brackets("2.00 GiB", "23.69 GiB", "10.00 GiB", "9.00 GiB", "20.00 GiB"), "20.00 GiB reserved + 9.00 GiB free"),
        (modern("2.00 GiB", "79.15 GiB", "1.00 GiB", "60.00 GiB", "58.00 GiB", "500.00 MiB", others=((77, "45.00 GiB"),)), "105.00 GiB together"),
        (modern("2.00 GiB", "23.69 GiB", "80.00 GiB", "20.00 GiB", "18.00 GiB", "500.00 MiB"), "80.00 GiB are free of a card of 23.69 GiB"),
        (modern("2.00 GiB", "23.69 GiB", "1.00 GiB", "78.20 GiB", "22.00 GiB", "100.00 MiB"), "this process holds 78.20 GiB of a card of 23.69 GiB"),
    ],
)  # fmt: skip
def test_figures_that_contradict_one_another_decide_nothing(message: str, says: str) -> None:
    found = diagnose_texts({"log": message})
    assert (found.cause.value, found.cures, found.contradictory) == ("unknown", (), True)
    assert says in " ".join((found.because, *found.arithmetic))


def test_a_process_below_what_its_allocator_keeps_shows_no_neighbour() -> None:
    """79.15 - 1 - 60 GiB would be a neighbour's, were the process not of 78 GiB at the least."""
    found = diagnose_texts(
        {"log": modern("2.00 GiB", "79.15 GiB", "1.00 GiB", "60.00 GiB", "58.00 GiB", "20.00 GiB")}
    )
    assert found.cause.value == "fragmentation"
    assert "does not follow" in " ".join(found.notes)


CUT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 500.00 MiB is free."
)


def summary(failed: int, allocated: tuple[int, int], reserved: int, device: int = 0) -> str:
    """``memory_summary()``'s rows, in whole MiB: allocated now and at most."""
    return (
        f"|                  PyTorch CUDA memory summary, device ID {device}                 |\n"
        f"|            CUDA OOMs: {failed}            |        cudaMalloc retries: 3         |\n"
        f"| Allocated memory      |  {allocated[0]} MiB |  {allocated[1]} MiB |  921337 GiB|  921267 GiB|\n"
        f"| GPU reserved memory   |  {reserved} MiB |  {reserved} MiB |     512 GiB|     434 GiB|\n"
    )


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        (summary(1, (71680, 72000), 79800), "fragmentation"),
        (summary(1, (77824, 77900), 78020), "real_need"),
        (summary(1, (60000, 77900), 79800), "unknown"),  # how much was let go on the way up is not said
        (summary(0, (77824, 77900), 78020), "unknown"),  # of a time before anything failed
        (summary(1, (77824, 77900), 78020, device=1), "unknown"),
    ],
)
def test_a_summary_fills_in_what_a_cut_message_lacks(table: str, cause: str) -> None:
    assert diagnose_texts({"log": f"{CUT}\n{table}"}).cause.value == cause


OLD_CUT = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capa"


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        (summary(1, (71680, 72000), 79800), "fragmentation"),
        (summary(1, (77824, 77900), 78020), "unknown"),  # up to 3 GiB may have been free
        (summary(1, (79400, 79410), 79500), "real_need"),
    ],
)
def test_a_summary_of_an_old_release_fills_in_what_is_cut_within_the_cards_size(
    table: str, cause: str
) -> None:
    """What the allocator did not hold of the card is the most that was free; MiB had no i."""
    old = table.replace("MiB", "MB").replace("GiB", "GB")
    assert diagnose_texts({"log": f"{OLD_CUT}\n{old}"}).cause.value == cause


@pytest.mark.parametrize("verb", ["crashes with", "dies: it raises", "I get a"])
def test_a_named_error_of_tensorflow_in_a_sentence_is_a_memory_error(verb: str) -> None:
    assert diagnose_texts({"log": f"The fourth fold {verb} ResourceExhaustedError, always."}).found
    assert not diagnose_texts({"log": "ResourceExhaustedError is the name of a class."}).found


@pytest.mark.parametrize(
    ("sizes", "kept", "cause"),
    [
        ((70, 72, 74, 76, 78), "150.00 MiB", "leak"),
        ((70, 72, 74, 76, 78), "7.00 GiB", "fragmentation"),  # what grew may lie in pieces
        ((70, 78, 78, 78, 78), "150.00 MiB", "real_need"),
        ((40, 41, 60, 61, 78), "150.00 MiB", "real_need"),
    ],
)
def test_reserved_bytes_that_only_grow_leak_unless_they_lie_in_pieces(
    sizes: tuple[int, ...], kept: str, cause: str
) -> None:
    steps = (
        f"step: {n:2}  loss:  8.1  grad_norm:  1.2  memory: {size:5.2f}GiB({size / 0.791:.2f}%)"
        for n, size in enumerate(sizes)
    )
    died = modern(
        "512.00 MiB",
        "79.10 GiB",
        "200.00 MiB",
        "78.90 GiB",
        "71.30 GiB" if "7" in kept else "77.60 GiB",
        kept,
    )
    assert diagnose_texts({"log": "\n".join((*steps, died))}).cause.value == cause
