"""What people say of a run in other tongues than English: the words of each thing that is said, a table of
data, and sentences in which several stand together, in whatever order a tongue has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.patterns import late_pattern

EVALUATION, TRAINING, FINE, DIES, RESUMES, FRESH, MEMORY, GROWS, SAVES, THAWS, FREEZES, SHARES, LONG = (
    "evaluation",
    "training",
    "fine",
    "dies",
    "resumes",
    "fresh",
    "memory",
    "grows",
    "saves",
    "thaws",
    "freezes",
    "shares",
    "long",
)
STEMS: Mapping[str, Mapping[str, str]] = {
    EVALUATION: {
        "de": "Validier|Evaluier|Auswertung", "es": "evalua|validaci[oó]n|validar", "fr": "[ée]valu|validation", "it": "valutazion|validazion|valutare",
        "pt": "avalia|valida[cç][aã]o", "ru": "валидаци|оценк|проверочн", "tr": "do[ğg]rulama|de[ğg]erlendirme|validasyon", "vi": "đánh giá|kiểm định",
        "": r"(?<![\w-])(?:eval|validation|evaluation|evaluate)(?![\w-])", "zh": "验证|評估|评估|评测|驗證|测试集", "ja": "検証|評価|バリデーション", "ko": "평가|검증", "pl": "walidacj|ewaluacj",
    },
    TRAINING: {
        "de": "Training|trainier", "es": "entrena", "fr": "entra[iî]ne|apprentissage", "it": "addestra|allenamento|training", "pt": "trein[ao]|treinamento",
        "ru": "обучени|обучает|тренировк|трениру", "tr": "e[ğg]itim", "vi": "huấn luyện|quá trình train", "": r"(?<![\w-])(?:train(?:ing)?|fine-?tun(?:e|ing))(?![\w-])", "zh": "训练|訓練", "ja": "学習|訓練|トレーニング", "ko": "학습|훈련", "pl": "trening|trenowani|uczeni|trenuje",
    },
    FINE: {
        "de": "stabil\\b|konstant|problemlos|ohne Probleme|geht gut|gut\\b|läuft (?:es|durch|stabil)?|klappt|funktioniert|passt\\b", "es": "estable|constante|(?:va|anda|corre|funciona|sale) bien|sin problemas?|funciona|perfecto|cabe\\b",
        "fr": "stable|constante?\\b|bien\\b|sans (?:aucun |le moindre )?(?:problème|souci)|marche\\b|fonctionne|tourne\\b|passe\\b|tient\\b", "it": "stabile|costante|(?:va|gira|funziona|tutto) bene|senza problemi|funziona|gira\\b|ci sta\\b|passa\\b",
        "pt": "est[áa]vel|constante|(?:vai|roda|funciona|corre) bem|sem problemas?|funciona|roda|normalmente|cabe\\b", "ru": "стабильн|нормально|без проблем|хорошо|работает|идёт|идет|влез|помещает",
        "tr": "sabit|sorunsuz|sorun yok|düzgün|iyi (?:gidiyor|çalışıyor)|normal|sığıyor", "vi": "bình thường|ổn|không (?:có |bị )?(?:vấn đề|lỗi|sao)|chạy được|chạy tốt|chạy bình thường",
        "zh": "稳定|没(?:有)?(?:任何|什么)?问题|正常|没问题|没有问题|沒問題|没事|都好|可以跑|能跑|够用|放得下", "ja": "安定|問題な|正常|うまく|できる|動く|回る|収ま", "ko": "안정|잘 (?:되|돌)|문제\\s?없|정상|괜찮|들어가", "pl": "stabiln|działa|bez problem|dobrze|mieści",
    },
    DIES: {
        "de": "abst[üu]rz|st[üu]rz|bricht\\b|abgebrochen|kracht|knallt|kein Speicher|Speicher (?:ist )?voll|Fehler", "es": "revienta|reviente|falla\\b|se cae|peta\\b|muere|explota|se queda sin memoria|error",
        "fr": "plante|crash|meurt|échoue|explose|manque de mémoire|erreur", "it": "crasha|va in crash|muore|si blocca|fallisce|esplode|finisce la memoria|errore",
        "pt": "estoura|falha|quebra|morre|cai\\b|explode|trava|dá erro|erro\\b|acaba a memória|fica sem memória", "ru": "пада|упал|вылета|умира|краш|взрыва|не хватает|ошибк|заканчивается",
        "tr": "çök|patl|hata|bellek (?:yet|bit)|doluyor", "vi": "lỗi|chết|sập|văng|hết bộ nhớ|tràn|crash", "zh": "爆|溢出|报错|崩|挂了|挂掉|显存不足|不够|炸",
        "ja": "落ち|エラー|メモリ不足|止ま|クラッシュ|死", "ko": "죽|터|에러|오류|부족|뜹|뜬|멈",
        "en": "dies\\b|died\\b|dying|fail(?:s|ed)?\\b|explodes?\\b|blows? up|boom\\b|killed", "": r"OOM|out of memory|CUDA error|crash|[:：]\s*$", "pl": "pada\\b|wywala|wysypuje|błąd|brak pamięci|kończy się pamięć",
    },
    RESUMES: {
        "de": "fortsetz|fortgesetzt|weitertrain|weitermach|vom Checkpoint|(?:aus|von) (?:einem |dem )?Checkpoint", "es": "reanud|retom|continuar (?:desde|el entren)|desde (?:el |un )?checkpoint",
        "fr": "repren|reprise|reprend|depuis (?:le |un )?checkpoint", "it": "riprend|ripre[ns]|dal checkpoint|da un checkpoint", "pt": "retom|continuar (?:do|de|a partir)|do checkpoint|a partir do checkpoint",
        "ru": "возобн|продолж\\w* (?:с|из|обуч)|с чекпо[ий]нта|из чекпо[ий]нта", "tr": "kaldığı yerden|checkpoint'?(?:ten|tan|den)|devam et", "vi": "tiếp tục (?:từ|train|huấn)|từ checkpoint|resume",
        "": r"(?<![\w-])resum(?:e|ing|ed)(?![\w-])", "zh": "断点续训|斷點續訓|续训|恢复训练|继续训练|从断点|从 ?checkpoint|加载 ?checkpoint", "ja": "再開|途中から|チェックポイントから", "ko": "이어서|재개|체크포인트에서|체크포인트부터", "pl": "wznow|wznaw|od checkpoint",
    },
    FRESH: {
        "de": "von vorne|von Anfang|von Null|frisch|neu gestartet", "es": "desde cero|desde el (?:principio|inicio)", "fr": "depuis le début|de zéro|à partir de zéro", "it": "da zero|dall'inizio",
        "pt": "do zero|desde o início|do início", "ru": "с нуля|с начала|сначала", "tr": "sıfırdan|baştan", "vi": "từ đầu", "zh": "从头|重新训练|从零", "ja": "最初から|ゼロから|新規|一から", "ko": "처음부터", "pl": "od zera|od początku",
    },
    MEMORY: {
        "de": "\\w*[Ss]peicher\\w*", "es": "memoria", "fr": "mémoire", "it": "memoria", "pt": "memória", "ru": "памят|видеопамят", "tr": "belle[ğgk]", "vi": "bộ nhớ",
        "zh": "显存|顯存|内存", "ja": "メモリ", "ko": "메모리", "": "VRAM|GPU", "pl": "pamię",
    },
    GROWS: {
        "de": "wächst|wachsend|steigt|steigend|läuft (?:langsam )?voll|füllt sich|nimmt (?:\\w+ ){0,3}zu|immer mehr|mehr Speicher", "es": "crec[ei]|aumenta[n]?\\b|aumentando|aumentó|sube[n]?\\b|subiendo|acumul", "fr": "(?<![Jj]')augmente(?:nt)?\\b|cro[îi]t|grimpe|monte\\b|s'accumule",
        "it": "cresc|aumenta(?:no)?\\b|aumentando|sale\\b|salendo|si accumula", "pt": "cresc|aumenta[m]?\\b|aumentando|sobem?\\b|subindo|acumul", "ru": "раст[её]т|расти|увеличива[ею]тся|увеличилась|накапл|прибавля|вс[её] больше", "tr": "artıyor|artar|artmakta|arttı|yüksel|büyü|birik",
        "vi": "tăng (?:dần|liên tục|theo|mãi|đều|từ từ|sau)", "zh": "增长|上涨|增加|越来越|不断|慢慢|逐渐|一直涨|在涨|都涨|涨到|往上|一.比一.(?:高|大|多)", "ja": "増え|増加|増して|上が|膨ら|溜ま", "ko": "증가|늘어|올라|쌓이|쌓여", "pl": "rośnie|narasta|przybywa",
    },
    SAVES: {
        "en": "(?:sav(?:e|es|ed|ing)|writ(?:e|es|ing)|dump(?:s|ing)?) (?:of )?(?:the |a |my |each |first )?(?:model|checkpoint|weights|state)|checkpoint (?:is|gets) (?:saved|written)|checkpointing (?:step|to disk)|save_(?:model|pretrained|checkpoint|state)",
        "de": "(?:beim|das) (?:Ab)?[Ss]peichern|abspeicher", "es": "guardar|guarda\\b|guardado", "fr": "sauvegard|enregistre", "it": "salva(?:re|taggio)|salva\\b", "pt": "salvar|salvamento|salva\\b", "ru": "сохран", "tr": "kaydet|kaydı",
        "vi": "lưu (?:model|mô hình|checkpoint)", "zh": "保存|存 ?checkpoint", "ja": "保存", "ko": "저장", "pl": "zapis",
    },
    THAWS: {
        "de": "aufgetaut|auftau|entfrier|alles trainierbar|alle (?:Schichten|Layer) trainier", "es": "descongel", "fr": "dégel|dégèl", "it": "scongel|sblocc", "pt": "descongel", "ru": "размор", "tr": "çözülü|çözünce|çözdü|buzunu çöz",
        "vi": "rã đông|mở băng|bỏ đóng băng", "": r"(?<![\w-])un-?freez(?:e|ed|ing)(?![\w-])", "zh": "解冻|解凍", "ja": "解凍|凍結解除|凍結を解", "ko": "동결 ?해제|언프리즈|해동", "pl": "odmroż",
    },
    FREEZES: {
        "de": "eingefroren|einfrier|gefreezt", "es": "congelad|congelo|congelar", "fr": "gelé|gèle\\b|figé", "it": "congelat|bloccat", "pt": "congelad|congelar", "ru": "заморо", "tr": "dondur|donuk",
        "vi": "đóng băng", "zh": "冻结|凍結", "ja": "凍結|フリーズ", "ko": "동결|프리즈", "pl": "zamroż",
    },
    LONG: {
        "de": "(?:sehr |extrem |besonders )?(?:langen?|längsten?) (?:Beispiel|Sequenz|Text|Sample|Dokument|Satz)", "es": "(?:muestra|secuencia|ejemplo|texto|documento)s? (?:muy |más )?larg[ao]s?",
        "fr": "(?:exemple|séquence|texte|document|échantillon)s? (?:très |plus )?long", "it": "(?:esempi|sequenz|test|document)\\w{0,2} (?:molto |più )?lung", "pt": "(?:amostra|sequência|exemplo|texto|documento)s? (?:muito |mais )?(?:long|comprid)",
        "ru": "длинн\\w* (?:пример|последовательност|текст|документ)", "zh": "(?:特别|非常|很|超|过|最)长的?(?:样本|序列|文本|句子|数据|样例|对话)", "ja": "(?:長い|最長の)(?:サンプル|系列|文|データ|文書)", "ko": "긴 (?:샘플|시퀀스|문장|데이터|문서)",
    },
    SHARES: {
        "de": "gemeinsam genutzt|teilen uns|andere (?:Nutzer|Leute)", "es": "(?:servidor|máquina|nodo|tarjeta) compartid|compartimos|otros usuarios", "fr": "(?:serveur|machine|carte|nœud) partagée?|d'autres utilisateurs|on partage",
        "it": "(?:server|macchina|scheda) condivis|altri utenti", "pt": "(?:servidor|máquina|placa) compartilhad|outros usuários", "ru": "общ(?:ий|ем|ей|ая) (?:сервер|машин|карт)|чужо[йе]|други\\w{1,2} (?:пользовател|люд)", "tr": "ortak (?:sunucu|makine|kart)|başkaları da",
        "vi": "dùng chung", "zh": "(?:共享|共用|公用)(?:的)?(?:服务器|机器|显卡|卡|节点)|别人也在|其他人也在|多人(?:共用|使用)|大家一起用", "ja": "共有(?:の)?(?:サーバ|マシン|GPU|計算機)|他の人も|他のユーザ", "ko": "(?:공용|공유) ?(?:서버|장비|GPU)|다른 사람", "pl": "współdziel|wspóln\\w+ (?:serwer|maszyn)",
    },
}  # fmt: skip
"""What each is called, by tongue: the beginnings of words, since most of these tongues bend their ends;
without a tongue what is written alike in several.
"""
_WITHOUT_SPACES = ("zh", "ja", "ko")
_SENTENCE = late_pattern(r"[.!?](?=\s|$)|[。！？；;\n]")
_CLAUSE = late_pattern(
    r"[,，、]\s?|(?<=는데)|(?<=지만)|(?<=のに)|(?<=けど)|(?<=が、)|但是?|可是"
    r"|\b(?:aber|doch|nur|pero|mas|mais|ma|però|но|а|ama|fakat|ancak|nhưng)\b",
    re.IGNORECASE,
)
"""What stands between the parts of a sentence of which each says something else."""
_LATE = late_pattern(
    r"(?<![\d.,])(?:[2-9]|[1-9]\d{1,6})(?:\.|-?[йя]|-?[oaªº]|e|er|ème|ª|'?\w{1,4})?\s{0,2}"
    r"(?:Epoche|Schritt|Stunde|Durchl[aä]uf|[ée]poca|paso|passo|iterac|iteraç|itération|iterazion|epoc[ah]|horas?\b|heures?\b|ore\b|époque|étape|эпох|шаг|итерац|час|adım|saat|tur\b|bước|giờ|lần"
    r"|petici|solicitud|imágen|imagen|archivo|requête|image|fichier|richiest|immagin|requisi|arquivo|pedido|Anfrage|Bild|Datei|запрос|картин|изображ|файл|istek|görüntü|görsel|dosya|yêu cầu|ảnh|minut|Tag|jour|día|dia\b|giorn|дн|gün|ngày"
    r"|epoce|epok|krok|godzin|epoch|step|轮|輪|步|次|个 ?epoch|小时|分钟|天|张|個|个请求|请求|エポック|ステップ|回|時間|分|枚|件|リクエスト|에폭|에포크|스텝|번|시간|분|장|개|요청)"
    r"|(?:Epoche|Schritt|Durchlauf|[ée]poca|paso|passo|iteración|iteração|itération|iterazione|epoca|époque|étape|pas|эпох\w{0,3}|шаг\w{0,3}|итераци\w{0,3}|bước|epoka|epoce|krok|epoch|lần|에폭|에포크|第)"
    r"\s{0,2}(?:thứ |numero |n[º°]?\.? ?)?(?:[2-9]|[1-9]\d{1,6})(?!\d)"
    r"|第[二三四五六七八九十百千]{1,4}(?:轮|步|次|个)",
    re.IGNORECASE,
)  # fmt: skip
"""A step, an epoch, a time that is not the first."""


def _tongue_pattern(name: str) -> re.Pattern[str]:
    stems = STEMS[name]
    spaced = "|".join(said for tongue, said in stems.items() if tongue not in (*_WITHOUT_SPACES, ""))
    bare = "|".join(said for tongue, said in stems.items() if tongue in (*_WITHOUT_SPACES, ""))
    return late_pattern(rf"\b(?:{spaced})|{bare}", re.IGNORECASE)


_PATTERNS = {name: _tongue_pattern(name) for name in STEMS}


def _word_parts(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    begun = 0
    for found in pattern.finditer(text):
        yield text[begun : found.start()]
        begun = found.end()
    yield text[begun:]


ASIDE = late_pattern(r"[(（][^()（）\n]{1,120}[)）]")
"""What stands in brackets, whose commas part no clause."""


def clauses_of(text: str) -> Iterator[str]:
    """Parts of sentences of which each says something else, without what stands in brackets."""
    for sentence in _word_parts(_SENTENCE, ASIDE.sub(" ", text)):
        if len(sentence) <= LONGEST:
            yield from _word_parts(_CLAUSE, sentence)


LONGEST = 400
"""Letters of a sentence; what is longer is a machine's."""


def says(clause: str, name: str) -> bool:
    """Whether a clause says one of these in any tongue."""
    return bool(_PATTERNS[name].search(clause))


def clause_with_all(text: str, *names: str) -> str:
    """The first clause that says all of these in another tongue than English; empty where none does."""
    patterns = [_PATTERNS[name] for name in names]
    if not all(pattern.search(text) for pattern in patterns):
        return ""
    told = (each for each in clauses_of(text) if all(pattern.search(each) for pattern in patterns))
    return next(told, "").strip()


_OF_ELSE = late_pattern(
    r"batch.?size|\bbs\b|\blote\b|批大小|批次大小|バッチサイズ|배치 ?(?:크기|사이즈)|max.?len|seq\w*.?len|长度|長さ|길이"
    r"|\bRAM\b|Arbeitsspeicher|Hauptspeicher|оперативн|ОЗУ|系统内存|主机内存|主存|CPU ?内存|\bhost\b|swap",
    re.IGNORECASE,
)  # fmt: skip
"""What else grows, or makes it: a setting, the host's memory."""


def growth_clause(text: str) -> str:
    """The clause by which people say that what is held grows, where they say somewhere that it is late when
    the job dies.
    """
    said = clause_with_all(text, MEMORY, GROWS) if _LATE.search(text) else ""
    return "" if _OF_ELSE.search(said) else said


def unfreezing_clause_abroad(text: str) -> str:
    """The clause by which people say that more is trained from some place on, of a run of which they say that
    less was trained before, or that it fitted.
    """
    said = clause_with_all(text, THAWS, DIES) or clause_with_all(text, THAWS)
    return (
        said
        if said and _LATE.search(text) and (clause_with_all(text, FREEZES) or clause_with_all(text, FINE))
        else ""
    )


def resumption_alone_dies(text: str) -> bool:
    """Whether people say that a run fits from its beginning, and not from a checkpoint."""
    return bool(clause_with_all(text, RESUMES, DIES) and clause_with_all(text, FRESH, FINE))
