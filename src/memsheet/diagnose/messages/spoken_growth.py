"""Memory that grows from one round of a job to the next, in figures that people write down themselves:
"20 GB → 34 GB → 47 GB after each epoch", "fold 1: 4 GB, fold 2: 8 GB, fold 3: 12 GB".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.messages.step_lines import ENOUGH
from memsheet.diagnose.tongues import ASIDE, GROWS, clause_with_all
from memsheet.patterns import late_pattern

_ROUNDS = (
    r"(?:epoch|step|iter(?:ation)?|fold|trial|run|fit|round|call|request|gen(?:eration)?|turn|message|chat|episode|game|image|prompt|file|video|document|restart|execution|experiment|sweep|cell"
    r"|Epoche|Durchlauf|Durchläufe|Lauf|Schritt|[ée]poca|paso|passo|iteración|iteração|vuelta|itération|époque|étape|epoca|iterazione|эпох|шаг|итераци|запуск|фолд|adım|tur|bước|lần"
    r"|petici[oó]n\w*|solicitud\w*|requ[êe]te|richiest\w|requisiç\w*|pedido|Anfrage|запрос\w*|istek|yêu cầu|im[aá]gen\w*|Bild\w*|картин\w*|请求|张|リクエスト|枚|요청|장"
    r"|轮|輪|步|折|次|エポック|ステップ|回|フォールド|에폭|스텝|폴드|번)"
)  # fmt: skip
"""What a job does again and again, as people of several tongues call it. A batch is none: its size is called
so, too.
"""
_NUMBER = r"\d{1,5}(?:[.,]\d{1,3})?"
_UNIT = r"(?:[GM]i?B?|gigs?|[GM]o|[ГМ]б|[ГМ]Б)(?![\w/])"
_FIGURE = (
    rf"(?:~|≈|about |ca\. )?{_NUMBER}\s?(?:{_UNIT})?"
    r"(?: (?:after|at|in|on|for) (?:the )?"
    r"(?:\dst|\dnd|\drd|\dth|first|second|third|fourth|fifth)\b(?: [a-z]{1,12})?)?"
)
_THEN = (
    r"\s?(?:-{1,2}>|→|=>|⇒|➜|>|、|，|,(?=\s)|;|/|…|\.{2,3}|,?\s(?:and|then|and then|to|dann|luego|después|puis|poi|depois|потом|затем|и|y|e|und|et)\b|然后|再到|到|から)\s?"
    r"(?:(?:and|then|finally)\s)?"
)  # fmt: skip
_SERIES = late_pattern(rf"(?<![\w.,]){_FIGURE}(?:{_THEN}{_FIGURE}){{2,24}}(?![\w.,]?\d)", re.IGNORECASE)
_PART = late_pattern(rf"(?<!\d)({_NUMBER})(?!\d|st\b|nd\b|rd\b|th\b)\s?({_UNIT})?", re.IGNORECASE)
_EACH = late_pattern(
    r"(?:\b(?:each|every|per|after|between|end of|successive|consecutive|jede[rmns]?|nach|pro|cada|por|tras|después de|chaque|après|par|ogni|dopo|após|кажд\w{0,3}|после|по|her|sonra|mỗi|sau)\b|每|毎|ごと|마다|각)"
    rf"[^\n.]{{0,24}}?{_ROUNDS}|{_ROUNDS}(?:ごと|마다|\s(?:by|after|für|tras|dopo)\s{_ROUNDS})"
    rf"|\b(?:over|across) (?:the )?{_ROUNDS}s"
    r"|\b(?:every|each) time\b|\bjedes ?mal\b|\bcada vez\b|\bà chaque fois\b|\bogni volta\b|каждый раз|\bher seferinde\b|\bmỗi lần\b|每次|毎回|매번",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that it is one figure a round."""
_OF_SETTINGS = late_pattern(
    r"\b(?:batch[ _-]?size|bs|seq(?:uence)?[ _-]?len\w*|(?:max|context)[ _-]?len\w*|length|context|resolution|rank|ranks|GPUs|cards|layers|beams|tokens|pixels|peaks?|max(?:imum)?|RAM|host|cpu|disk|ssd|checkpoints? (?:size|file)s?|dataset|shards?)\b"
    r"|\b(?:gpu|card|device|rank) ?[0-7]\b|\b\d{1,3}B\b(?! (?:->|→))|分辨率|长度|批大小|解像度",
    re.IGNORECASE,
)  # fmt: skip
"""Words of what else makes one figure larger than the one before it."""
_PAIR = late_pattern(
    rf"(?:(?<![A-Za-z])(?P<round>{_ROUNDS})s?\s{{0,2}}[#=(]?\s?(?P<count>\d{{1,7}})(?![\d.,]\d)|第 ?(?P<place>\d{{1,7}}) ?(?:个 ?)?(?:步|轮|輪|折|次|回|ステップ|エポック|epoch))[^\n\d;.]{{1,30}}?(?P<size>{_NUMBER})\s?(?P<unit>{_UNIT})",
    re.IGNORECASE,
)  # fmt: skip
_SENTENCE_END = late_pattern(r"\n|\.\s|\w{0,40}Error|[Oo]ut of memory|OOM")
_LONG_ROUND = late_pattern(
    r"epoch|fold|trial|run|fit|round|execution|experiment|sweep|cell|restart|video|document|Epoche|Durchl|Lauf|[ée]poca|époque|epoca|эпох|запуск|фолд|折|エポック|フォールド|에폭|폴드",
    re.IGNORECASE,
)  # fmt: skip
"""Rounds of which one is a whole run, or long."""
FEWEST, AROUND, BETWEEN = 3, 160, 60
"""Figures that make a growth; letters around them that say of what they are; letters between two pairs."""
FAR_APART = 10
"""Steps between two figures, of which the first is then no beginning of a run."""
LEAST_GROWTH = (11, 10)


def growth_in_prose(text: str) -> tuple[Interval, ...]:
    """What people say is held after each round of a job, where it only grew, by about the same; else
    nothing.
    """
    told = itertools.chain(_series_of_text(text), _pairs_of_text(text))
    return next((sizes for sizes in told if _grows_evenly(sizes)), ())


_SIZE = rf"(?P<size>{_NUMBER})\s?(?P<unit>{_UNIT})"
_EACH_ROUND = (
    rf"(?:\b(?:per|each|every|a|an|pro|je|jede[rmns]?|cada|por|a cada|chaque|par|à chaque|ogni|per ogni|her|mỗi|na|co|alle|tou(?:te)?s les|при кажд\w{{0,3}}|за кажд\w{{0,3}}|кажд\w{{0,3}}|на|за)\s(?:[\w,.]{{1,12}}\s)?|/|每|毎|1)"
    rf"(?:(?<=[每毎/])\s?\d{{1,6}}\s?个?)?\s?{_ROUNDS}"
)  # fmt: skip
_BY_ROUND = rf"(?:\d{{1,6}}\s?)?{_ROUNDS}(?:ごと|あたり|마다|당)"
_RATE = late_pattern(
    rf"(?<![\w.,]){_SIZE}[^\n.;:\d]{{0,24}}?(?:{_EACH_ROUND}|{_BY_ROUND})"
    rf"|(?:{_EACH_ROUND}|{_BY_ROUND})[^\n.;:\d]{{0,56}}?(?P<size_behind>{_NUMBER})\s?(?P<unit_behind>{_UNIT})",
    re.IGNORECASE,
)  # fmt: skip
_COUNT_OF_ROUNDS = late_pattern(
    rf"(?<![\w.,])(?P<count>\d{{1,7}}(?:[.,]\d{{3}})?)(?:st|nd|rd|th|\.|-?[йяаo]|ª|º)?\s?(?:个\s?)?(?:\w{{1,10}}\s)?{_ROUNDS}|{_ROUNDS}\w{{0,3}}\s?[#=:]?\s?(?P<behind>\d{{1,7}})(?![\w.,]\d)",
    re.IGNORECASE,
)  # fmt: skip
MOST_RATES = 8
_ADDS = late_pattern(
    r"\+\s?\d|\badd(?:s|ed|ing)?\b|grow|creep|climb|increas|\bris(?:es?|ing)\b|\bmore\b|extra|additional|\bup\b|\bleav(?:es?|ing)\b|\bleft\b|leak|\bstays?\b|never|not (?:freed|released)|accumul"
    r"|\bdeja\b|laisse|lascia|deixa|l[äa]sst|bleib|dazu|hinzu|zurück|sin liberar|sem liberar|оста[её]тся|прибавля|残|남|留|bırak|để lại",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that what a round takes is not given back."""
_DOTTED_NAME = late_pattern(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(\))?")
_ROUNDS_OF_RATE = late_pattern(rf"(\d{{1,6}}|\d{{1,3}},\d{{3}})\s?个?\s?{_ROUNDS}", re.IGNORECASE)


def spoken_rates(text: str) -> tuple[tuple[Interval, int], ...]:
    """What people say that a round adds, with each number of rounds that they say."""
    text = _DOTTED_NAME.sub("it", ASIDE.sub("", text))
    if not (found := list(itertools.islice(_RATE.finditer(text), MOST_RATES))):
        return ()
    counts = {
        int((each["count"] or each["behind"]).replace(",", "").replace(".", ""))
        for each in itertools.islice(_COUNT_OF_ROUNDS.finditer(text), MOST_RATES * MOST_RATES)
    }
    told = [
        each for each in found
        if (around := text[max(0, each.start() - AROUND // 4) : each.end() + AROUND // 4]) and not _OF_SETTINGS.search(around)
        and (_ADDS.search(around) or clause_with_all(around, GROWS))
    ]  # fmt: skip
    rates = (
        (size, int(of[1].replace(",", "")) if (of := _ROUNDS_OF_RATE.search(each.group())) else 1)
        for each in told
        for size in _sizes_in_prose(
            [(each["size"] or each["size_behind"], each["unit"] or each["unit_behind"])]
        )
    )
    return tuple(
        (size, count // of) for size, of in rates for count in sorted(counts) if count // of >= FEWEST
    )


def _grows_evenly(sizes: Sequence[Interval]) -> bool:
    steps = [later.middle - earlier.middle for earlier, later in itertools.pairwise(sizes)]
    if len(sizes) < FEWEST or min(steps) <= 0 or max(steps) > 2 * min(steps):
        return False
    return sizes[-1].middle * LEAST_GROWTH[1] >= sizes[0].middle * LEAST_GROWTH[0]


def _series_of_text(text: str) -> Iterator[tuple[Interval, ...]]:
    """Figures in a row, of which the words around say that each is of a round."""
    for found in _SERIES.finditer(text):
        before, behind = text[max(0, found.start() - AROUND) : found.start()], text[found.end() :][:AROUND]
        around = before + _SENTENCE_END.split(behind, 1)[0]
        if _EACH.search(around) and not _OF_SETTINGS.search(around):
            yield _sizes_in_prose(_PART.findall(found.group()))


def _pairs_of_text(text: str) -> Iterator[tuple[Interval, ...]]:
    """Rounds by their numbers, one behind the other, with a figure each; of steps, of which a few are a run's
    beginning, more of them.
    """
    rows: list[list[re.Match[str]]] = []
    for found in _PAIR.finditer(text):
        last = rows[-1][-1] if rows else None
        apart = _count_of(rows[-1][1]) - _count_of(rows[-1][0]) if rows and len(rows[-1]) > 1 else 0
        follows = (
            last is not None
            and (
                _count_of(found) - _count_of(last) == apart
                or (not apart and _count_of(found) > _count_of(last))
            )
            and found.start() - last.end() <= BETWEEN
        )
        rows = [*rows[:-1], [*rows[-1], found]] if follows else [*rows, [found]]
    for place, row in enumerate(rows):
        around = text[max(0, row[0].start() - BETWEEN) : row[-1].end()]
        apart = _count_of(row[1]) - _count_of(row[0]) if len(row) > 1 else 1
        long = _LONG_ROUND.match(row[0]["round"] or "") or apart >= FAR_APART
        if len(row) < (FEWEST if long else ENOUGH + 1) or _OF_SETTINGS.search(around):
            continue
        sizes = _sizes_in_prose([(each["size"], each["unit"]) for each in row])
        behind = _sizes_in_prose(
            [(each["size"], each["unit"]) for later in rows[place + 1 :] for each in later]
        )
        if sizes and all(each.middle > sizes[-1].middle for each in behind):
            yield sizes


def _count_of(found: re.Match[str]) -> int:
    return int(found["count"] or found["place"])


def _sizes_in_prose(figures: Sequence[tuple[str, str]]) -> tuple[Interval, ...]:
    """Figures as sizes; one without a unit has that of the next that says one, else of the last."""
    units = [unit for _, unit in figures]
    if not any(units):
        return ()
    last = next(unit for unit in reversed(units) if unit)
    told = (
        printed_bytes(number.replace(",", "."), _binary_unit(next((each for each in units[place:] if each), last)))
        for place, (number, _) in enumerate(figures)
    )  # fmt: skip
    return tuple(size for size in told if size is not None)


def _binary_unit(unit: str) -> str:
    return "MiB" if unit[:1] in "MmМм" else "GiB"
