"""PyTorch's message in other words than its own comes to what the message itself does."""

from __future__ import annotations

import random

import pytest

import memsheet
from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.messages.retold import retold_messages

TOLD = {
    "de": "CUDA: Nicht genügend Speicher. Es wurde versucht, {asked} zu reservieren. GPU 0 hat eine Gesamtkapazität von {capacity}, davon sind {free} frei. Dieser Prozess belegt {process}. Vom zugewiesenen Speicher sind {allocated} von PyTorch belegt und {kept} von PyTorch reserviert, aber nicht belegt.",
    "fr": "CUDA : mémoire insuffisante. Tentative d'allocation de {asked}. Le GPU 0 a une capacité totale de {capacity} dont {free} est libre. Ce processus utilise {process}. Parmi la mémoire allouée, {allocated} sont alloués par PyTorch et {kept} sont réservés par PyTorch mais non alloués.",
    "it": "Tentativo di allocare {asked}. La GPU 0 ha una capacità totale di {capacity} di cui {free} liberi. Questo processo ha {process} in uso. Della memoria allocata {allocated} sono allocati da PyTorch e {kept} sono riservati ma non allocati.",
    "pl": "Brak pamięci. Próbowano przydzielić {asked}. GPU 0 ma całkowitą pojemność {capacity}, z czego {free} jest wolne. Ten proces zajmuje {process}. Z przydzielonej pamięci {allocated} jest przydzielone przez PyTorch, a {kept} jest zarezerwowane przez PyTorch, ale nieprzydzielone.",
    "ru": "Попытка выделить {asked}. GPU 0 имеет общую ёмкость {capacity}, из которых {free} свободно. Этот процесс использует {process} памяти. Из выделенной памяти {allocated} выделено PyTorch, и {kept} зарезервировано PyTorch, но не выделено.",
    "tr": "{asked} ayrılmaya çalışıldı. GPU 0 toplam kapasitesi {capacity}, bunun {free} kadarı boş. Bu işlem {process} bellek kullanıyor. Tahsis edilen belleğin {allocated} kadarı PyTorch tarafından tahsis edildi ve {kept} PyTorch tarafından ayrılmış ama tahsis edilmemiş.",
    "zh": "CUDA 内存不足。尝试分配 {asked}。GPU 0 的总容量为 {capacity}，其中 {free} 可用。进程占用 {process}。其中 {allocated} 由 PyTorch 分配，{kept} 由 PyTorch 保留但未分配。",
    "ja": "{asked} を割り当てようとしました。GPU 0 の総容量は {capacity} で、そのうち {free} が空きです。このプロセスは {process} を使用しています。割り当て済みメモリのうち {allocated} が PyTorch により割り当てられ、{kept} が PyTorch により予約されていますが未割り当てです。",
    "ko": "{asked} 할당을 시도했습니다. GPU 0의 총 용량은 {capacity}이며 그중 {free}가 여유입니다. 이 프로세스는 {process}를 사용 중입니다. 할당된 메모리 중 {allocated}가 PyTorch에 의해 할당되었고 {kept}는 PyTorch가 예약했지만 할당되지 않았습니다.",
    "slips": "CUDA out of mernory. Tried to a1locate {asked}. GPU O has a tota1 capacity of {capacity} of which {free} is free. Inc1uding non-PyTorch memory, this process has {process} memory in use. Of the a1located memory {allocated} is a1located by PyTorch, and {kept} is reserved by PyTorch but una1located.",
    "cut": "...cate {asked}. GPU 0 has a total capacity of {capacity} of which {free} is free. Including non-PyTorch memory, this process has {process} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {kept} is reserved by PyTorch but unallocated.",
    "prose": "it tried to allocate {asked}, the GPU has {capacity} in total with {free} free, the process uses {process}, {allocated} allocated by PyTorch and {kept} reserved but unallocated",
    "short": "OOM: tried to get {asked}, {free} free of {capacity}, {allocated} allocated by torch, {kept} reserved",
}  # fmt: skip
PLAIN = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {capacity} of which {free} is free. Including "
    "non-PyTorch memory, this process has {process} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {kept} is reserved by "
    "PyTorch but unallocated."
)  # fmt: skip
DIGITS = {"slips": str.maketrans("0", "O"), "de": str.maketrans(".", ","), "fr": str.maketrans(".", ",")}
UNITS = {"fr": "Gio", "ru": "ГиБ"}


def _figures(seed: int) -> dict[str, str]:
    drawn = random.Random(seed)
    capacity = drawn.choice((15.77, 23.69, 44.43, 79.15))
    free = drawn.uniform(0.2, 2)
    kept = drawn.uniform(0.1, 0.4) * capacity if drawn.random() < 0.5 else drawn.uniform(0.1, 0.4)
    allocated = capacity - free - kept - 0.5
    figures = {"asked": drawn.uniform(2.5, 4), "capacity": capacity, "free": free, "process": capacity - free, "allocated": allocated, "kept": kept}  # fmt: skip
    return {name: f"{size:.2f}" for name, size in figures.items()}


@pytest.mark.parametrize("told", TOLD)
def test_a_message_in_other_words_comes_to_what_its_own_does(told: str) -> None:
    for seed in range(8):
        figures = _figures(seed)
        plain = memsheet.diagnose(PLAIN.format(**{name: f"{size} GiB" for name, size in figures.items()}))
        digits, unit = DIGITS.get(told, {}), UNITS.get(told, "GiB")
        said = {name: f"{size.translate(digits)} {unit}" for name, size in figures.items()}
        found = memsheet.diagnose(TOLD[told].format(**said))
        assert (found.cause, found.missing) == (plain.cause, plain.missing), (seed, found.because)
        same = ("asked_bytes", "free_bytes", "allocated_bytes", "unallocated_bytes")
        assert {name: found.facts[name] for name in same} == {name: plain.facts[name] for name in same}


@pytest.mark.parametrize(
    "text",
    [
        "The model takes 14.2 GiB of 23.7 GiB and 2.1 GiB are free.",
        "Tried 3 settings: 10.1 GiB, 12.3 GiB and 14.0 GiB at peak; the process had 0.5 GiB of context.",
        "step 1: 10.1 GiB reserved\nstep 2: 10.2 GiB reserved\nstep 3: 10.3 GiB reserved",
    ],
)
def test_figures_of_no_refusal_are_no_message(text: str) -> None:
    assert not list(retold_messages(Log(text.split("\n"))))


def test_a_size_that_is_cut_off_is_not_taken_from_another_figure() -> None:
    cut = "GPU 0 has a total capacity of 44.53 GiB of which 612.00 MiB is free. Including non-PyTorch memory, this process has 43.92 GiB memory in use. Of the allocated memory 42.60 GiB is allocated by PyTorch"  # fmt: skip
    assert not list(retold_messages(Log([cut])))


def test_other_processes_are_told_by_their_numbers() -> None:
    found = memsheet.diagnose(
        "Попытка выделить 768,00 МиБ. GPU 0 имеет общую ёмкость 23,69 ГиБ, из которых 210,00 МиБ свободно. Процесс 4411 использует 18,90 ГиБ памяти. "
        "Этот процесс использует 4,55 ГиБ памяти. Из выделенной памяти 4,02 ГиБ выделено PyTorch, и 98,00 МиБ зарезервировано PyTorch, но не выделено."
    )  # fmt: skip
    assert found.cause.value == "other_process"
    assert "4411" in found.because
