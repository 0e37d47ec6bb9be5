"""What a log shows beside its message: the functions that ran, the program, the settings, the step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.frames import (
    ADAPTERS,
    BACKWARD,
    BEFORE_TRAINING,
    CHECKPOINT_SAVE,
    EVALUATION,
    EVALUATION_STEP,
    FIRST_UPDATE,
    FRAMES,
    GATHERED,
    GRAPH_CAPTURE,
    INFERENCE,
    LOADING,
    OF_RUNNING,
    OF_TRAINING,
    PICTURES,
    PROFILE,
    PROMPT_PROBS,
    SCORES,
    SERVER_STEP,
    SERVING,
    TASKS,
    TRAINS,
    WEIGHTS,
    Frame,
)
from memsheet.diagnose.growing_figures import Series, growing_series
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.kept_tensors import growth_in_words, kept_over_rounds
from memsheet.diagnose.log_programs import DRAWS, PROGRAMS, SERVER_CODE, SERVERS, program_of_speaker
from memsheet.diagnose.messages import step_lines, vllm
from memsheet.diagnose.messages.deepspeed import grows_steadily
from memsheet.diagnose.messages.exported_series import exported_growth
from memsheet.diagnose.messages.spoken_growth import growth_in_prose, spoken_rates
from memsheet.diagnose.messages.stated import card_of
from memsheet.diagnose.named_cards import NamedCard
from memsheet.diagnose.regimes import (
    Change,
    change_of_run,
    checkpoint_saving_clause,
    fits_unless_resumed,
    says_evaluation_dies,
    says_training_fits,
    thawing_words,
    trained_before,
    unfreezing_clause,
)
from memsheet.diagnose.said_regimes import (
    event_dies,
    first_update_dies,
    fits_otherwise,
    long_sample_dies,
    next_phase_dies,
    saves_event,
)
from memsheet.diagnose.script_lines import Kept
from memsheet.diagnose.tracebacks import (
    FRAMES_AFTER,
    FRAMES_BEFORE,
    codes_of_frames,
    frame_of_code,
    innermost_code,
    names_of_frames,
    traceback_of,
    written_buffer,
)
from memsheet.frozen import dataclass, replace

_GATHERED = re.compile(r"\b(?:nested_concat|torch_pad_and_concatenate)\(")
"""transformers v4.57.1, trainer_pt_utils.py: where an evaluation puts its predictions together."""
_LOADS = re.compile(r"Starting to load model |Load weight begin\.|Loading safetensors checkpoint shards")
_LOADED = re.compile(r"Model loading took|Loading model weights took|Loading weights took|Load weight end\.")
_VERL = re.compile(r"(?<![A-Za-z])verl(?![A-Za-z])")
_OLD_MESSAGE = re.compile(
    r"(?:CUDA|HIP)outofmemory\.Triedtoallocate[\d.]{1,20}[KMGTPE]?(?:iB|B|bytes)\(GPU\d{1,3};[^()]{0,300}?"
    r"(?:(?P<cached>cached\))|reservedintotalbyPyTorch\))"
)
_TRAINER = re.compile(r'^File "[^"\n]{0,400}train[^"\n]{0,80}\.py"', re.IGNORECASE)
_WRITES = re.compile(
    r"^\s*(?:\w+\s{0,3}=\s{0,3})?(?:self\.)?(?:model|pipe|pipeline)\.(generate|merge_and_unload)\("
)
"""A script's line that lets a model write, or merges its adapter."""
_CALLS_TRAINING = re.compile(r"\b\w{0,40}[Tt]rainer\.(?:train|fit)\(")
"""A script's line that starts a training, in whose midst the traceback stands."""
_CALL = re.compile(
    r"\b(cross_entropy|log_softmax|top_k_mask_logits|baddbmm|capture_model|event_loop_normal"
    r"|event_loop_overlap|(?:lm_head|output_layer)(?=\())\b"
)
_DOTTED = re.compile(r"(?<=\w) \.{2,200} (?=\S)")
"""What stands between an argument and its value where Megatron-LM prints all (megatron/training/arguments.py,
_print_args).
"""
_RECOMPUTES = re.compile(
    r"gradient_checkpointing[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:True|true|unsloth)\b|--gradient_checkpointing(?!\s+[Ff]alse)(?![\w=])"
    r"|recompute-granularity\s+full\b|activation_checkpoint\.mode[= ][\"']?full\b|disable_gradient_checkpointing: false"
    r"|\bfsdp_activation_checkpointing: true|in recompute_fn\b|\brecompute_fn\(\*|in unpack_hook\b|\bCheckpointFunction\b"
)  # fmt: skip
"""What says that activations are made again in backward: a setting, or a traceback that does it."""
_WINDOWS = re.compile(r"\b[A-Za-z]:\\\w|WinError")
_WINDOWS_SAID = re.compile(
    r"\bWindows (?:[78]|1[01]|Server)\b|\bwin[ -]?1[01]\b|\bpage ?file\b|\bpaging file\b", re.IGNORECASE
)
_NOT_WINDOWS = re.compile(
    r"\bWSL|\bssh\b|\bLinux\b|\bUbuntu\b|(?<![\w.])/(?:home|usr|opt|root|workspace)/", re.IGNORECASE
)
"""What says of a text that its job ran elsewhere than on the system that it names."""
_EXPANDABLE = re.compile(
    r"(?<!setting)PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF[\"']?\]?[=:][\"']?[\w:,.]{0,100}?expandable_segments:True"
    r"(?!\S{0,20}?toavoid)"
)
"""A setting in a text without spaces, and not what a message recommends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """``frame``: what the innermost known function allocates for; ``phase``: of the run, where one is told;
    ``program``: whose log it is (``PROGRAMS``); ``changed_at``: by which words the run
    is another one from a step or an epoch on, where it died at just that.
    """

    frame: Frame | None = None
    phase: str = ""
    task: str = ""
    """What runs that is no training (``TASKS``)."""
    release: str = ""
    """The last of PyTorch's releases that prints such a message, where it is an old one."""
    program: str = ""
    trainer: str = ""
    """The first program of the log that is no server."""
    windows: bool = False
    expandable: bool = False
    recomputes: bool = False
    """Whether activations are made again in backward already."""
    outsized: tuple[int, int] | None = None
    """Tokens of the step that died and the most of those before it, where it is far larger."""
    kept: tuple[Kept, ...] = ()
    """What a script keeps on the card from round to round, where several ran."""
    resumed: bool = False
    """Whether the run is said to fit from its beginning, and to die where it goes on from a checkpoint."""
    eight_bits: bool = False
    """Whether the optimizer's states are in few bits already."""
    single_rows: bool = False
    """Whether a micro-batch has one row."""
    card: NamedCard | None = None
    """That the job runs on, where one is known."""
    grows_said: str = ""
    """By which words people say that memory only grows, and that the job died late of it."""
    changed_at: Change | None = None
    thaws: str = ""
    """By which words the run said right before it died that it trains more from there on."""
    thaws_said: str = ""
    """By which words people say the same of a run whose steps had fitted."""
    phase_said: str = ""
    """By which words people say that one part of the run fitted, and the next did not."""
    saves_said: str = ""
    """By which words people say that it died as it saved a checkpoint, and that its steps fitted."""
    long_said: str = ""
    """By which words people say that it died at a sample that is far longer than others."""
    growth: tuple[Interval, ...] = ()
    """What was allocated from step to step, where it only grew."""
    reserved_growth: tuple[Interval, ...] = ()
    """What was reserved, likewise."""
    series: tuple[Series, ...] = ()
    """Figures that grow evenly, of which arithmetic tells whether they are what was held."""
    rates: tuple[tuple[Interval, int], ...] = ()
    """What people say that a round adds, and how many rounds they name."""
    used_growth: tuple[Interval, ...] = ()
    """What of the card was used, likewise."""
    buffer: tuple[tuple[int, ...], str] | None = None
    """Shape and dtype that the traceback's last line of code writes out."""
    code: str = ""
    """The traceback's last line of code."""
    sleep_freed: Interval | None = None
    """What a server said that it gave back when it was put to sleep."""
    text: str = ""


def read_signs(log: Log, line: int) -> Signs:
    """What stands around a message that begins on a line."""
    window = log.lines[max(0, line - FRAMES_BEFORE) : line + FRAMES_AFTER]
    names, own = list(names_of_frames(window)), traceback_of(log, line) or window
    programs = _programs_of(log, line)
    trains = _is_training(log, line, window, names)
    named = _loads_or_infers(_named_by_frames(own, trains=trains), log, line, own, programs, trains=trains)
    of_server = _task_of_server(log, line, window, names, named, programs)
    named = _with_stated_phase(named, log, line, of_server)
    asked = "" if trains or named.frame else _asked_of_prompts(log.text, programs)
    if asked:
        named, of_server = replace(named, frame=PROMPT_PROBS), SERVING
        programs = [asked, *(name for name in programs if name != asked)]
    gathered = named.task == EVALUATION and any(_GATHERED.search(each) for each in own)
    return replace(
        _signs_of_text(log, line),
        frame=named.frame, buffer=written_buffer(own), code=innermost_code(own), phase=named.phase, task=GATHERED if gathered else of_server or named.task,
        program=programs[0] if programs else "", trainer=next((name for name in programs if name not in SERVERS), ""),
    )  # fmt: skip


_PROMPTS_ASKED = (
    ("SGLang", re.compile(r"\breturn_logprob\b[\"']?\s{0,3}[:=]\s{0,3}[Tt]rue\b|\blogprob_start_len\b[\"']?\s{0,3}[:=]\s{0,3}\d")),
    ("vLLM", re.compile(r"\bprompt_logprobs\b(?![\"']?\s{0,3}[:=]\s{0,3}(?:None|null))")),
)  # fmt: skip


def _asked_of_prompts(text: str, programs: Sequence[str]) -> str:
    """The server whose requests ask for log-probabilities of their prompts, by the options that it alone has;
    empty where none does, or a trainer has a word in the text.
    """
    if any(name not in SERVERS for name in programs):
        return ""
    return next((server for server, sign in _PROMPTS_ASKED if sign.search(text)), "")


def _signs_of_text(log: Log, line: int) -> Signs:
    """What the text says, whatever functions stand in it."""
    text, growth = log.text, grows_steadily(log) or step_lines.allocated_growth(log)
    growing = growing_series(log, line)
    event = _event_said(log, line)
    return Signs(
        release=_old_release(log, line), windows=_on_windows(text), expandable=bool(_EXPANDABLE.search(log.squeezed)), recomputes=bool(_RECOMPUTES.search(text)),
        series=growing, rates=spoken_rates(text),
        kept=() if step_lines.stays_level(log) else kept_over_rounds(text, several=bool(growth or step_lines.peak_growth(log) or growing)),
        growth=growth, reserved_growth=step_lines.reserved_growth(log), used_growth=step_lines.used_growth(log) or exported_growth(log) or growth_in_prose(text), grows_said=growth_in_words(text),
        outsized=step_lines.outsized_step(log, line), long_said=long_sample_dies(text), resumed=fits_unless_resumed(text), phase_said=next_phase_dies(text) or ("" if saves_event(event) else event), saves_said=checkpoint_saving_clause(text) or (event if saves_event(event) else ""),
        changed_at=change_of_run(log, line), thaws=thawing_words(log, line), thaws_said=unfreezing_clause(text),
        card=card_of(log), sleep_freed=vllm.server_facts(log).get("sleep_freed_bytes"), text=_DOTTED.sub(" = ", text),
    )  # fmt: skip


def _event_said(log: Log, line: int) -> str:
    """By which words around a message, without its traceback, people say that the run died at what its other
    steps do not do.
    """
    own = traceback_of(log, line)
    before = list(log.lines[max(0, line - FRAMES_BEFORE) : line])
    shown = before[: len(before) - len(own) + 1] if own and log.lines[line] == own[-1] else before
    behind = [each for each in log.lines[line + 1 : line + FRAMES_AFTER] if each not in own]
    last = next(
        (
            each
            for each in reversed(shown)
            if each.strip() and "Traceback" not in each and not _BAR_BEGUN.search(each)
        ),
        "",
    )
    return event_dies("\n".join((*shown, *behind)), last, stepped=trained_before(log, line, saves=False))


_BAR_BEGUN = re.compile(r"(?<!\d)0%\||(?<!\d)0/\d+ \[")
"""A progress bar that has not moved."""


def _programs_of(log: Log, line: int) -> list[str]:
    """Programs of the text, the one whose process said the message first."""
    programs = [name for name, marks in PROGRAMS if any(mark in log.text for mark in marks)]
    spoke = program_of_speaker(log, line)
    return [spoke, *(name for name in programs if name != spoke)] if spoke else programs


def _is_training(log: Log, line: int, window: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a training runs, by functions, by a script's call, or by steps before the message."""
    saves = any(FRAMES.get(name) is CHECKPOINT_SAVE for name in names)
    trains = any(name in TRAINS for name in names) or trained_before(log, line, saves=saves)
    trains = trains or any(_CALLS_TRAINING.search(each) for each in codes_of_frames(window))
    evaluates = any(FRAMES.get(name) is EVALUATION_STEP for name in names)
    trains = trains or (evaluates and fits_otherwise(_words_around(log, line)))
    return trains and not any(name in BEFORE_TRAINING for name in names)


def _named_by_frames(own: Sequence[str], *, trains: bool) -> Signs:
    """What the functions of a traceback show, or calls in its lines, or what these make by their names."""
    named = signs_of_names(list(names_of_frames(own)), trains=trains)
    if named.frame is None:
        calls = [found[1] for each in own if (found := _CALL.search(each))]
        named = replace(signs_of_names(calls, trains=trains), task=named.task)
    made = frame_of_code(own)
    says_little = named.frame in (None, SERVER_STEP, BACKWARD, EVALUATION_STEP)
    says_little = says_little or (named.frame is PROFILE and made is SCORES)
    return replace(named, frame=made) if made and says_little else named


def _loads_or_infers(
    named: Signs, log: Log, line: int, own: Sequence[str], programs: Sequence[str], *, trains: bool
) -> Signs:
    """The same, with what a progress bar, a script or people say where functions say too little. ``own``: the
    message's traceback, or what stands around it.
    """
    if named.frame is None:
        said = not traceback_of(log, line) and (_says_it_loads(log, line) or _loads_by_script(log, line))
        if said or _loads_shards(log, line):
            named = replace(named, frame=WEIGHTS, phase=named.phase or "load")
    if named.frame is None and not traceback_of(log, line) and first_update_dies(_words_around(log, line)):
        named = replace(named, frame=FIRST_UPDATE)
    if not named.task and not trains and not (programs and programs[0] in SERVERS):
        named = replace(named, task=_task_of_script(own, programs))
    if not named.task and named.frame is None and not trains and _says_it_infers(log, line):
        named = replace(named, task=INFERENCE)
    return named


def _with_stated_phase(named: Signs, log: Log, line: int, of_server: str) -> Signs:
    """The same, with how far a server had come, or that it was an evaluation, where the text says it."""
    if (
        not named.phase
        and named.frame is None
        and _WAKES.search("\n".join(log.lines[max(0, line - 3) : line]))
    ):
        named = replace(named, phase="wake")
    if not named.phase and (phase := _phase_of_server("\n".join(log.lines[:line]), of_server)):
        frame = named.frame or (GRAPH_CAPTURE if phase == "graphs" else None)
        named = replace(named, phase=phase, frame=frame)
    told = named.task or named.phase or of_server
    evaluates = not told and says_evaluation_dies(log.text) and says_training_fits(log.text)
    return replace(named, task=EVALUATION) if evaluates else named


def _on_windows(text: str) -> bool:
    """Whether a job ran on Windows, by its paths and errors, or by what people say of their machine."""
    return bool(_WINDOWS.search(text) or (_WINDOWS_SAID.search(text) and not _NOT_WINDOWS.search(text)))


_SHARDS_READ = re.compile(r"Loading (?:safetensors |pt )?checkpoint shards:\s{0,3}(\d{1,3})%")
"""transformers v4.57.1, modeling_utils.py; vllm/model_executor/model_loader/weight_utils.py."""
_LOADING_SAID = re.compile(
    r"\b(?:while|when|during|on|just)\s(?:[a-z]{1,10}\s){0,2}(?:loading|load)\b|^\W{0,3}loading\b[^\n]{0,80}:\s*$"
    r"|\bload(?:s|ing)? (?:the |my |a )?(?:model|weights|checkpoint)\b[^\n]{0,30}\b(?:dies|fails|crash|oom|error)"
    r"|読み込み|ロード(?:中|時|で)|加载|載入|读取模型|\bLaden\b|\bbeim Laden|\bchargement\b|\bcargar|\bal carg|\bcarregar|загруз",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
"""How people say, in several tongues, that a model is loaded."""
_STEPS_SAID = re.compile(
    r"\b(?:step|epoch|iter(?:ation)?|loss|batch|train(?:s|ing|er)?|fine-?tun\w+|backward|generat\w+|inference|seq\w*)\b",
    re.IGNORECASE,
)  # fmt: skip


def _words_around(log: Log, line: int) -> str:
    before, behind = log.lines[max(0, line - FRAMES_BEFORE) : line], log.lines[line + 1 : line + FRAMES_AFTER]
    return "\n".join((*before, *behind))


def _says_it_loads(log: Log, line: int) -> bool:
    """Whether people's words around a message without a traceback say that a model was loaded, and nothing of
    what runs with one.
    """
    words = _words_around(log, line)
    return bool(_LOADING_SAID.search(words)) and not _STEPS_SAID.search(words)


_LOADS_BY_CODE = re.compile(r"\bfrom_pretrained\(|\.to\([\"']?(?:cuda|device\b)|\.cuda\(\)\s*$")
"""A line of a script that puts a model on a card."""


def _loads_by_script(log: Log, line: int) -> bool:
    """Whether the last line of a script before a message without a traceback is one that loads."""
    shown = (each for each in reversed(log.lines[max(0, line - FRAMES_BEFORE) : line]) if each.strip("` "))
    return bool(_LOADS_BY_CODE.search(next(shown, "")))


_INFERS = re.compile(
    r"\binference\b|\bno training\b|\bonly (?:infer\w*|generat\w+)\b|\bjust (?:chatt?ing|generat\w+)\b",
    re.IGNORECASE,
)
_TRAINS_SAID = re.compile(
    r"(?<!no )\btrain(?:s|ed|er)?\b|(?<!no )\btraining\b|\bfine-?tun\w+|\bepochs?\b|\bloss\b|\bbackward\b|\boptimi[sz]er\b|\blora\b|\bgrad\w*",
    re.IGNORECASE,
)  # fmt: skip


def _says_it_infers(log: Log, line: int) -> bool:
    """Whether words around a message say that a model only reads or writes, and nothing of a training."""
    words = _words_around(log, line)
    return bool(_INFERS.search(words)) and not _TRAINS_SAID.search(words)


def _loads_shards(log: Log, line: int) -> bool:
    """Whether the last word of a progress before a message is of weights that are not all read yet."""
    before = "\n".join(log.lines[:line])
    read = list(_SHARDS_READ.finditer(before))
    return bool(read) and int(read[-1][1]) < 100 and not _OF_STEPS.search(before, read[-1].end())


_OF_STEPS = re.compile(r"\b(?:loss|step|epoch|iter(?:ation)?|throughput)\b", re.IGNORECASE)


def _task_of_script(window: Sequence[str], programs: Sequence[str]) -> str:
    """What a script does that trains nothing, by its own lines in a traceback, or its program."""
    called = [found[1] for each in codes_of_frames(window) if (found := _WRITES.match(each))]
    draws = bool(programs) and (
        programs[0] in DRAWS
        or (programs[0] == "diffusers" and not any(_TRAINER.match(each) for each in window))
    )
    return TASKS[called[-1]] if called else PICTURES if draws else ""


def _task_of_server(
    log: Log, line: int, window: Sequence[str], names: list[str], named: Signs, programs: list[str]
) -> str:
    """What a server does, where the message is a server's: its process said it, its functions stand in the
    traceback, or none stand there and no trainer has a word in the log.
    """
    spoken = program_of_speaker(log, line) in SERVERS
    own = (
        spoken or any(part in each for each in window for part in SERVER_CODE)
        if names or spoken else len(programs) == 1
    )  # fmt: skip
    told = named.frame in OF_RUNNING or (named.frame in (None, SCORES) and own)
    trains = not spoken and (
        any(name in TRAINS or not TASKS.get(name, "none") for name in names) or bool(_VERL.search(log.text))
    )
    if not programs or programs[0] not in SERVERS or trains or not told:
        return ""
    before = "\n".join(log.lines[:line])
    begun = [found.end() for found in _LOADS.finditer(before)]
    loads = named.phase == "load" or (bool(begun) and not _LOADED.search(before, begun[-1]))
    return LOADING if loads and named.frame in (WEIGHTS, ADAPTERS, None) else SERVING


_POOLED = re.compile(
    r"Memory pool end|KV Cache is allocated|GPU KV cache size: \d|# (?:GPU|CUDA|cuda) blocks: [1-9]"
    r"|(?:Prefill|Decode) batch[. \[]|Avg prompt throughput: "
    r"|Setting max batch total tokens to \d"  # text-generation-inference's router
    # lmdeploy/pytorch/engine/executor/base.py
    r"|CacheConfig: num_gpu_blocks: [1-9]|CacheConfig\(.{0,200}num_gpu_blocks=[1-9]"
    r"|\"POST /(?:v\d/|generate|chat|completions?)\S{0,60} HTTP/1\.\d\" 200"  # uvicorn's line of a request
    r"|Available KV cache memory: \d"  # vllm/v1/worker/gpu_worker.py, determine_available_memory
    r"|Capture cuda graph begin|Capturing (?:CUDA graph|batches)|Capturing the model for CUDA graphs"
)
_WARMS_UP = re.compile(r"Method Warmup encountered an error|Warming up model")
"""text-generation-inference's launcher: a trial run of the largest prompt, before its cache is made."""
_WAKES = re.compile(
    r"\b(?:wake_up|resume_memory_occupation)\((?!\w{1,40}:)"
    r"|(?:POST|/)\W{0,3}(?:wake_up|resume_memory_occupation)\b"
)
"""A line of a log in which a sleeping server is told to take its memory back."""
_CAPTURES = re.compile(
    r"Capture cuda graph begin|Capturing (?:CUDA graph|batches)|Capturing the model for CUDA graphs"
)
_CAPTURED = re.compile(
    r"Capture cuda graph end|Graph capturing finished|Application startup complete|fired up and ready"
)


def _phase_of_server(before: str, task: str) -> str:
    """How far a server had come, by its own lines before a message, where no function of a traceback says it:
    its cache takes its share before graphs are captured, and both before it serves.
    """
    pooled = list(_POOLED.finditer(before))
    if task == SERVING and not pooled and _WARMS_UP.search(before):
        return "profile"
    if task != SERVING or not pooled or _LOADS.search(before, pooled[-1].end()):
        return ""
    captures = list(_CAPTURES.finditer(before, pooled[0].start()))
    return "graphs" if captures and not _CAPTURED.search(before, captures[-1].end()) else "run"


def _old_release(log: Log, line: int) -> str:
    """PyTorch's c10/cuda/CUDACachingAllocator.cpp: figures in brackets until v2.0.1, what is kept called
    ``cached`` until v1.3.1.
    """
    place = log.place_of(line)
    found = _OLD_MESSAGE.search(log.squeezed, place, place + 1500)
    return "" if found is None else "1.3" if found["cached"] else "2.0"


def signs_of_names(names: Sequence[str], *, trains: bool | None = None) -> Signs:
    """What functions show, the innermost last. ``trains``: whether it is a training run, where they do not
    say so.
    """
    frames = [FRAMES[name] for name in names if name in FRAMES]
    if trains is None:
        trains = any(name in TRAINS for name in names)
    phases = [frame.phase for frame in frames if frame.phase and (trains or frame.phase not in OF_TRAINING)]
    tasks = [TASKS[name] for name in names if name in TASKS]
    return Signs(
        frame=_innermost_frame(frames), phase=phases[-1] if phases else "", task=tasks[-1] if tasks else ""
    )


def _innermost_frame(frames: list[Frame]) -> Frame | None:
    """The last that says what is made; what only says that a step runs gives way to one that says more."""
    telling = [frame for frame in frames if frame not in (SERVER_STEP, BACKWARD)]
    return (telling or frames)[-1] if frames else None
