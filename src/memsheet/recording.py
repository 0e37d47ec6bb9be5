"""What a model's own code allocates, recorded once: every storage of a part as an exact function of sequences
and tokens, in the order of events. Plain data; no torch here.

``memsheet.trace`` writes it, ``memsheet.formulas.tapes`` turns it into a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.errors import input_error
from memsheet.frozen import dataclass, field
from memsheet.late import late_functions

if TYPE_CHECKING:
    from memsheet.handing import Handing
with late_functions(__name__):
    from memsheet.handing import handing_document, handing_from


SCHEMA = "memsheet/recording/2"
Term = tuple[int, int, int]
"""(factor, power of sequences, power of tokens a sequence)."""
Terms = tuple[Term, ...]
"""Their sum, in bytes."""


@dataclass(frozen=True, slots=True)
class RecordedStorage:
    """One storage. ``path`` in the model; ``width``: bytes an element where it is a parameter's gradient,
    else 0.
    """

    path: str
    terms: Terms
    width: int = 0


GRADIENT_WIDTHS = (1, 2, 4)  # bytes an element
ALLOCATED, RELEASED, MADE_GRADIENT = "alloc", "free", "gradient"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedPass:
    """One part of a model, run forward and backward. Numbers are places in ``storages``; a log is
    (what happens, to which).

    ``saved``: there after forward because backward needs it; ``cached``: until the model's forward ends;
    ``handed``: made by the part before; ``outputs``: handed to the part after; ``collected``: handed, and
    there until the last layer has run; ``lingering``: saved, and there until the whole backward is over;
    ``waiting``: gradients there when a forward runs again.
    """

    storages: tuple[RecordedStorage, ...]
    forward: tuple[tuple[str, int], ...]
    backward: tuple[tuple[str, int], ...]
    saved: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()
    handed: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    collected: tuple[int, ...] = ()
    lingering: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedRun:
    """A model's parts as they run in one way. ``layers``: by kind of layer; ``light``: the forward of layers
    that are run again in backward, which saves nothing; ``entry``: a kind as the first layer, whose input
    needs no gradient. Of no layer, as (path, bytes): ``shared``, kept until backward is through; ``masks``,
    there until the last layer has run; ``until_loss``, until the loss is there (autocast's copies of an
    encoder's weights); ``named``, from the loss to the end of the step. It holds for ``least`` tokens a
    sequence and more, in whole multiples of ``every``.
    """

    embeddings: RecordedPass
    head: RecordedPass
    loss: RecordedPass
    layers: Mapping[int, RecordedPass]
    light: Mapping[int, RecordedPass] = field(default_factory=dict)
    entry: Mapping[int, RecordedPass] = field(default_factory=dict)
    shared: tuple[tuple[str, Terms], ...] = ()
    masks: tuple[tuple[str, Terms], ...] = ()
    until_loss: tuple[tuple[str, Terms], ...] = ()
    named: tuple[tuple[str, Terms], ...] = ()
    every: int = 1
    least: int = 0


@dataclass(frozen=True, slots=True)
class RecordedCache:
    """What a kind of layer keeps between tokens, in elements: of each token (the newest ``window`` of them
    where there is one) in the cache's dtype, of each sequence in fp32 and as computed, and of each token that
    an encoder read, as computed.
    """

    token_elements: int
    window: int | None = None
    state_elements: int = 0
    computed_elements: int = 0
    memory_elements: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedGeneration:
    """What few layers of a model allocate while a prompt is read (``prefill``) and while the last token of a
    full sequence is made (``decode``): forward logs, in which the cache is what is ``saved``. ``places``: of
    each layer that was run, its cache's places in ``prefill``; ``kept``: their numbers in the whole model.
    """

    prefill: RecordedPass
    decode: RecordedPass
    places: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]


DECODER, ENCODER, ENCODER_DECODER = "decoder", "encoder", "encoder-decoder"
FEWEST_RECORDED, MOST_RECORDED = 1024, 3584
"""Tokens of the shortest and longest sequences that a record is solved from."""
GENERATES = "generates"
"""Of a way to run: a prompt is read and tokens are made, in place of a training step."""
PROMPT = "prompt"
"""Of a way to generate: tokens of a prompt that is held, where they are not as many as a full sequence's."""
BETWEEN = "between"
"""Of a way to run: of sequences of so many tokens or more, and of fewer than so many (None: any)."""
CASTS_ARGUMENTS = "casts_arguments"
"""Of a way to run: every layer's floating arguments are cast to the dtype that is computed in."""
WIDE_BUFFERS = "wide_buffers"
"""Of a way to run that casts them: the model is stored in fp32, and so are its buffers."""
RunKey = str
"""A way to run: the plan of one GPU as JSON, without what changes nothing inside a layer."""


EMBEDDINGS, HEAD = "embeddings", "head"
"""The ends of a model."""
TRAINED, IDLE, FROZEN = GRADED = "trained", "idle", "frozen"
"""Of a tensor: a step leaves a gradient of it; it would take one, and the step that was run leaves none; its
code asks for none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedParameter:
    """One tensor. ``path`` within its layer (or the model); ``kind``: the module's that holds it (linear,
    conv1d, embedding, norm, bias, expert, other; or buffer); ``dtype``: where the code fixes it; ``graded``:
    one of ``GRADED``.
    """

    path: str
    shape: tuple[int, ...]
    kind: str
    dtype: str | None = None
    graded: str = TRAINED


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Recording:
    """A model's own code on record. ``stack``: the path of its layers; ``kinds``: of each layer its kind, a
    place in ``layers``, which holds the parameters of each kind; ``others``: those of no layer. ``table``,
    ``projection``: the modules that look words up and that make logits. ``eager_only``: the library has no
    fused attention for it. ``units``: what else than layers the library says is never split, as paths with
    indices folded. ``given``: what its steps are given beside words, in words. ``runs``: None for a
    way to run that is no function of sequences and tokens, and is on record at single sizes. ``windows``:
    lengths at which its code may act otherwise, which no function of size crosses. ``stacks``: decoder,
    encoder (of which no tokens are made) or encoder-decoder. ``wrapped_classes``: what to name to an engine
    that wraps classes, where the library's own choice is not whole layers. ``regrouped``: what of
    accelerate's groups does not run, and what is counted instead, in words; ``head_group``: modules that are
    grouped with the head for that, besides what makes logits; ``idle_ends``: of these ends' groups one never
    runs. ``holds_prompt``: whether
    what it made of a prompt's words is there while tokens are made.

    ``make`` records a further way to run; None where nothing can. ``caches``: of each kind of layer, where
    they were asked for; ``handing``: how a server would run the code, likewise.
    """

    model_type: str
    versions: Mapping[str, str]
    hidden: int
    vocab: int
    stack: str
    kinds: tuple[int, ...]
    layers: tuple[tuple[RecordedParameter, ...], ...]
    others: tuple[RecordedParameter, ...]
    table: str = ""
    projection: str = ""
    tied: bool = False
    eager_only: bool = False
    given: str = ""
    windows: tuple[int, ...] = ()
    stacks: str = DECODER
    units: tuple[str, ...] = ()
    wrapped_classes: tuple[str, ...] = ()
    regrouped: str = ""
    head_group: tuple[str, ...] = ()
    idle_ends: tuple[str, ...] = ()
    holds_prompt: bool = False
    runs: dict[RunKey, RecordedRun | RecordedGeneration | None] = field(default_factory=dict)
    make: Callable[[RunKey], RecordedRun | RecordedGeneration | None] | None = None
    caches: tuple[RecordedCache, ...] = ()
    handing: Handing | None = None

    def run_of(self, key: RunKey) -> RecordedRun | None:
        """The model's parts as they run in that way, recorded now where they were not before; None where that
        is no function of size. Raises InputError where nothing here can record.
        """
        found = self._on_record(key)
        assert not isinstance(found, RecordedGeneration)
        return found

    def generation_of(self, key: RunKey) -> RecordedGeneration | None:
        """As ``run_of``, of a model that generates."""
        found = self._on_record(key)
        assert not isinstance(found, RecordedRun)
        return found

    def _on_record(self, key: RunKey) -> RecordedRun | RecordedGeneration | None:
        if key not in self.runs:
            if self.make is None:
                raise input_error(
                    "model_type",
                    self.model_type,
                    "is not written down here, and what its own code does is not on record for this plan",
                    "pip install 'memsheet[trace]'",
                )
            self.runs[key] = self.make(key)
        return self.runs[key]


@dataclass(frozen=True, slots=True)
class RecordedPart:
    """Where a part of a model finds its record: a kind of layer, or an end."""

    recording: Recording
    part: int | str


# ---- as JSON -----------------------------------------------------------------------------------------------


def recording_document(recording: Recording) -> dict[str, Any]:
    """``memsheet/recording/2``."""
    return {
        "schema": SCHEMA, "model_type": recording.model_type, "versions": dict(recording.versions),
        "hidden": recording.hidden, "vocab": recording.vocab, "stack": recording.stack, "kinds": list(recording.kinds),
        "layers": [[_parameter_row(one) for one in layer] for layer in recording.layers],
        "others": [_parameter_row(one) for one in recording.others],
        "table": recording.table, "projection": recording.projection, "tied": recording.tied, "eager_only": recording.eager_only,
        "given": recording.given, "windows": list(recording.windows), "stacks": recording.stacks, "units": list(recording.units),
        "wrapped_classes": list(recording.wrapped_classes), "regrouped": recording.regrouped, "head_group": list(recording.head_group), "idle_ends": list(recording.idle_ends),
        "holds_prompt": recording.holds_prompt,
        "runs": {key: run and run_document(run) for key, run in recording.runs.items()},
        "caches": cache_rows(recording.caches),
        "handing": recording.handing and handing_document(recording.handing),
    }  # fmt: skip


def _check_kinds(recording: Recording) -> Recording:
    """Raises KeyError, IndexError or ValueError where what is on record lacks a kind of layer."""
    for run in recording.runs.values():
        if isinstance(run, RecordedRun):
            for kind in recording.kinds:
                run.layers[kind]
        elif run is not None and {recording.kinds[number] for number in run.kept} != set(recording.kinds):
            raise ValueError(run.kept)
    if recording.caches and len(recording.caches) != len(recording.layers):
        raise ValueError(recording.caches)
    return recording


def recording_from(document: Mapping[str, Any]) -> Recording:
    """The recording of a document. Raises InputError where it is none."""
    if document.get("schema") != SCHEMA:
        raise input_error("recording", document.get("schema"), f"is not {SCHEMA}")
    try:
        found = Recording(
            model_type=str(document["model_type"]),
            versions={str(name): str(value) for name, value in document["versions"].items()},
            hidden=_count(document["hidden"]),
            vocab=_count(document["vocab"]),
            stack=str(document["stack"]),
            kinds=tuple(range(len(document["layers"]))[_count(kind)] for kind in document["kinds"]),
            layers=tuple(tuple(map(_parameter_from, layer)) for layer in document["layers"]),
            others=tuple(map(_parameter_from, document["others"])),
            table=str(document["table"]),
            projection=str(document["projection"]),
            tied=bool(document["tied"]),
            eager_only=bool(document["eager_only"]),
            given=str(document.get("given", "")),
            windows=tuple(map(_count, document["windows"])),
            stacks=str(document.get("stacks", DECODER)),
            units=tuple(map(str, document["units"])),
            wrapped_classes=tuple(map(str, document.get("wrapped_classes", ()))),
            regrouped=str(document.get("regrouped", "")),
            head_group=tuple(map(str, document.get("head_group", ()))),
            idle_ends=tuple(map(str, document.get("idle_ends", ()))),
            holds_prompt=bool(document.get("holds_prompt", False)),
            runs={str(key): run_from(run) for key, run in document["runs"].items()},
            caches=caches_from(document.get("caches", ())),
            handing=handing_from(document.get("handing"), len(document["layers"])),
        )
        return _check_kinds(found)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise input_error("recording", type(error).__name__, "is not as its schema says") from None


def run_document(run: RecordedRun | RecordedGeneration) -> dict[str, Any]:
    """One way to run, as JSON."""
    if isinstance(run, RecordedGeneration):
        return {
            "prefill": _pass_document(run.prefill), "decode": _pass_document(run.decode),
            "places": [list(layer) for layer in run.places], "kept": list(run.kept),
        }  # fmt: skip
    return {
        "embeddings": _pass_document(run.embeddings), "head": _pass_document(run.head), "loss": _pass_document(run.loss),
        **{name: {str(kind): _pass_document(one) for kind, one in getattr(run, name).items()} for name in ("layers", "light", "entry")},
        **{name: [[path, [list(term) for term in terms]] for path, terms in getattr(run, name)] for name in OF_NO_LAYER},
        "every": run.every, "least": run.least,
    }  # fmt: skip


def run_from(document: Mapping[str, Any] | None) -> RecordedRun | RecordedGeneration | None:
    """One way to run, of its document; None of none."""
    if document is None:
        return None
    if "prefill" in document:
        prefill = _pass_from(document["prefill"])
        return RecordedGeneration(
            prefill=prefill,
            decode=_pass_from(document["decode"]),
            places=tuple(
                tuple(range(len(prefill.storages))[_count(place)] for place in layer)
                for layer in document["places"]
            ),
            kept=tuple(
                _count(number) for number, _ in zip(document["kept"], document["places"], strict=True)
            ),
        )
    return RecordedRun(
        embeddings=_pass_from(document["embeddings"]),
        head=_pass_from(document["head"]),
        loss=_pass_from(document["loss"]),
        **{  # type: ignore[arg-type]
            name: {int(kind): _pass_from(one) for kind, one in document[name].items()}
            for name in ("layers", "light", "entry")
        },
        **{  # type: ignore[arg-type]
            name: tuple((str(path), _terms_from(terms)) for path, terms in document.get(name, ()))
            for name in OF_NO_LAYER
        },
        every=max(1, _count(document.get("every", 1))),
        least=_count(document.get("least", 0)),
    )


PLACES = ("saved", "cached", "handed", "outputs", "collected", "lingering", "waiting")
"""The fields of a pass that name storages by their places."""
OF_NO_LAYER = ("shared", "masks", "until_loss", "named")
"""The fields of a run that hold storages of no part."""
_WHAT = (ALLOCATED, RELEASED, MADE_GRADIENT)


def _pass_document(one: RecordedPass) -> dict[str, Any]:
    return {
        "storages": [[s.path, [list(term) for term in s.terms], s.width] for s in one.storages],
        "forward": [[_WHAT.index(what), place] for what, place in one.forward],
        "backward": [[_WHAT.index(what), place] for what, place in one.backward],
        **{name: list(getattr(one, name)) for name in PLACES if getattr(one, name)},
    }


def _pass_from(document: Mapping[str, Any]) -> RecordedPass:
    storages = tuple(
        _storage_from(str(path), _terms_from(terms), _count(width))
        for path, terms, width in document["storages"]
    )
    known = range(len(storages))

    def place(number: Any) -> int:
        return known[_count(number)]

    found = RecordedPass(
        storages=storages,
        forward=tuple((_WHAT[_count(what)], place(at)) for what, at in document["forward"]),
        backward=tuple((_WHAT[_count(what)], place(at)) for what, at in document["backward"]),
        **{name: tuple(map(place, document.get(name, ()))) for name in PLACES},
    )
    there = _play((), found.forward)
    _play({*there, *found.saved}, found.backward)
    return found


def _play(there: Iterable[int], log: Iterable[tuple[str, int]]) -> set[int]:
    """What is there after a log. Raises ValueError for one that makes what is there or lets go of what is
    not.
    """
    live = set(there)
    for what, place in log:
        if (place in live) is (what == ALLOCATED):
            raise ValueError(place)
        if what == ALLOCATED:
            live.add(place)
        elif what == RELEASED:
            live.remove(place)
    return live


def _storage_from(path: str, terms: Terms, width: int) -> RecordedStorage:
    """A storage; a parameter's gradient is of one size, in whole elements of a width that is known."""
    if width and (width not in GRADIENT_WIDTHS or [powers for _, *powers in terms] != [[0, 0]]):
        raise ValueError(width)
    return RecordedStorage(path, terms, width)


def _terms_from(rows: Any) -> Terms:
    return tuple((int(factor), _count(b), _count(s)) for factor, b, s in rows)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def cache_rows(caches: Iterable[RecordedCache]) -> list[list[int | None]]:
    """What layers keep, as JSON."""
    return [
        [one.token_elements, one.window, one.state_elements, one.computed_elements, one.memory_elements]
        for one in caches
    ]


def caches_from(rows: Any) -> tuple[RecordedCache, ...]:
    """The caches of ``cache_rows``. Raises ValueError, TypeError for others."""
    return tuple(map(_cache_from, rows))


def _cache_from(row: Any) -> RecordedCache:
    tokens, window, states, computed, *memory = row
    return RecordedCache(
        _count(tokens), None if window is None else _count(window), *map(_count, (states, computed, *memory))
    )


def _parameter_row(one: RecordedParameter) -> list[Any]:
    return [one.path, list(one.shape), one.kind, one.dtype, one.graded]


def _parameter_from(row: Any) -> RecordedParameter:
    path, shape, kind, dtype, graded = row
    return RecordedParameter(
        path=str(path),
        shape=tuple(map(_count, shape)),
        kind=str(kind),
        dtype=None if dtype is None else str(dtype),
        graded=GRADED[GRADED.index(graded)],
    )
