"""The pages whose numbers are computed: ``python docs/generate.py`` writes them, a test fails when they drift."""

# ruff: noqa: INP001

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "tests")]

import messages  # noqa: E402
import parallelism  # noqa: E402

import memsheet  # noqa: E402
from golden import worked  # noqa: E402
from memsheet.questions.cures_of_jobs import what_helps  # noqa: E402
from memsheet.report.screen.checked import render_checked  # noqa: E402
from memsheet.report.screen.died.diagnosis import render_diagnosis  # noqa: E402
from memsheet.report.screen.jobs.phases import render_job  # noqa: E402
from memsheet.report.screen.plans.ranking import render_plans  # noqa: E402
from memsheet.report.screen.table import render_answer  # noqa: E402
from memsheet.report.shared.look import Look  # noqa: E402
from memsheet.sheet import Component, Instant, Sheet  # noqa: E402
from memsheet.textbook import recomputed_activations  # noqa: E402
from memsheet.units import GIB  # noqa: E402

GENERATED = "<!-- made by docs/generate.py: edit the script or tests/golden/worked_examples.toml, then `make regold` -->\n"


KEPT = ("model.layers.", "model.embed_tokens/")
"""What layers keep for backward: their own, and the first one's input, which is the embeddings' output."""


# ---- worked examples -------------------------------------------------------------------------------------------------------

VERDICTS = {True: "stands", False: "wrong", None: "a matter of definition"}


def worked_examples() -> str:
    """reference/worked_examples.md."""
    wrong = [e for e in worked.examples() if e.agrees is False]
    start = (
        f"{len(worked.examples())} numbers that guides to this subject print, each computed again by memsheet's own code\n"
        "(`tests/golden/worked.py` names the function behind every one).\n"
        f"{len(wrong)} of them do not stand. GB is 10⁹ bytes, GiB is 2³⁰; ours is exact, rounded only for reading."
    )
    return "\n".join([
        GENERATED, "# Worked examples", "", start, "",
        *_tables(), "## Where the published number does not stand, and why", "",
        *(f"- **{_question(e)}.** Published: {e.published}. Ours: {_value(e.ours, e.unit)}. {e.note}" for e in wrong), "",
    ])  # fmt: skip


def _tables() -> Iterator[str]:
    for topic in dict.fromkeys(e.topic for e in worked.examples()):
        yield from (
            f"## {topic[0].upper()}{topic[1:]}",
            "",
            "| Question | Published | Ours | Verdict | |",
            "|---|---|---|---|---|",
        )
        for e in worked.examples():
            if e.topic == topic:
                note = "" if e.agrees is False else e.note  # explained below
                yield f"| {_question(e)} | {e.published} | {_value(worked.answer(e), e.unit)} | {VERDICTS[e.agrees]} | {note} |"
        yield ""


def _question(example: worked.Example) -> str:
    inputs = ", ".join(f"{key.replace('_', ' ')} {_input(value)}" for key, value in example.inputs.items())
    return f"`{example.id}`: {inputs}"


def _input(value: Any) -> str:
    if isinstance(value, list):
        return " + ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _value(value: Any, unit: str) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key.replace('_', ' ')}: {_value(part, unit)}" for key, part in value.items())
    if unit == "bytes" and isinstance(value, int):
        return f"{_decimal(value)} ({value:,})"
    return f"{value:,}" if isinstance(value, int | float) else f"`{value}`"


def _decimal(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{float(round(Fraction(size, unit), 2)):,g} {name}"
    return f"{size} B"


# ---- recompute -------------------------------------------------------------------------------------------------------------

LAYERS, MODEL = (
    32,
    {"model": "llama-2-7b", "seq_len": 2048, "microbatch": 4, "precision": "bf16-pure", "attention": "sdpa"},
)
ROWS: tuple[tuple[str, dict[str, Any], int | None], ...] = (
    ("none", {"recompute": "none"}, None),
    ("every layer", {"recompute": "full"}, 1),
    ("every 4 layers", {"recompute_every": 4}, 4),
    ("√32 ≈ 6 segments", {"recompute_segments": 6}, 6),
)


def kept_by_layers(sheet: Sheet) -> int:
    """Bytes that the layers hold from forward to backward, as they stand when the loss is computed."""
    return sum(
        i.at[Instant.LOSS].value
        for i in sheet.items
        if i.component is Component.SAVED_ACTIVATIONS and i.path.startswith(KEPT) and Instant.LOSS in i.at
    )


def recompute_rows() -> list[tuple[str, int, int, int, str]]:
    """(setting, kept between the passes, worst moment of backward, peak of the step, its instant)."""
    sheets = {name: memsheet.train(**MODEL, **options).sheets[0] for name, options, _ in ROWS}
    layer, start = kept_by_layers(sheets["none"]) // LAYERS, kept_by_layers(sheets["every layer"]) // LAYERS
    rows = []
    for name, _, every in ROWS:
        sheet, kept = sheets[name], kept_by_layers(sheets[name])
        worst = kept if every is None else recomputed_activations(LAYERS, every, layer, start)
        rows.append((name, kept, worst, sheet.allocated.value, sheet.peak_instant.value.replace("_", " ")))
    return rows


def recompute() -> str:
    """concepts/recompute.md."""
    rows = recompute_rows()
    layer, start, peak = (
        rows[0][1] // LAYERS,
        rows[1][1] // LAYERS,
        {name: size for name, _, _, size, _ in rows},
    )
    table = [
        f"| {name} | {_gib(kept)} | {_gib(worst)} | {_gib(top)} | {when} | {'none' if kept == rows[0][1] else '+33 %'} |"
        for name, kept, worst, top, when in rows
    ]  # fmt: skip
    return RECOMPUTE.format(
        head=GENERATED, table="\n".join(table), layer=_gib(layer), start=_mib(start), ratio=round(layer / start), best=f"{(LAYERS * start / layer) ** 0.5:.1f} layers",
        inputs=_gib(LAYERS * start), saved=_gib(peak["none"] - peak["every layer"]),
        published=_decimal(recomputed_activations(LAYERS, 4, 1_600_000_000, start)), single=_decimal(recomputed_activations(LAYERS, 1, 1_600_000_000, start)),
    )  # fmt: skip


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _mib(size: int) -> str:
    return f"{size / 2**20:g} MiB"


RECOMPUTE = """{head}
# Recompute

Backward needs what forward computed. Either every layer keeps it, or a stretch of layers keeps only the input of the stretch and is run
forward once more when backward reaches it. memsheet takes the list of what each operation of a layer saves, and recompute is the choice of
which part of that list stays.

## What stays, and when

Llama-2-7B, microbatch 4, 2,048 tokens, pure bf16, fused attention (`sdpa`), AdamW, one GPU:

| Recomputed | Kept by the layers from forward to backward | The same at backward's worst moment | Peak of the whole step | At | Extra compute |
|---|---|---|---|---|---|
{table}

One layer saves {layer}; its input alone is {start}, about {ratio} times less. So three quantities decide, and a table that has fewer of them is wrong:

1. the **inputs** of all stretches, which stay from forward to backward: {inputs} when every layer is one;
2. the **inside of one stretch**, which comes back when backward reaches it: one layer, four layers, or more the longer the stretch is;
3. everything else that is resident at that moment: states, gradients made so far, logits.

The first falls and the second rises with the length of a stretch: n / k · input + k · inside is least at k = √(n · input / inside). The √n that is often
quoted (Chen et al. 2016, arXiv:1604.06174) is that for an input as large as a layer's inside. Here the inside is {ratio} times larger, the best length
is {best}, and recomputing **every layer** on its own is the cheapest.

## What it costs

Backward is about two forwards' worth of arithmetic, a step three. Full recompute runs one more forward: a third more, 33 %,
and the same for every row above: stretches of one layer, four layers or √32 segments all run each layer forward exactly once more. Longer
stretches buy nothing here. Guides report 30 to 40 % more time.

## The table that is copied most

"None 51 GB; every layer about 1.6 GB; every 4 layers about 12.8 GB", for 32 layers of 1.6 GB. Two of its rows are wrong:

- **1.6 GB** is the inside of one layer. The 32 inputs are missing: {single}.
- **12.8 GB** is eight whole layers. With stretches of four, eight *inputs* stay and *one* stretch of four layers is alive: {published}.

And as the step's peak shows, the saving is not the difference of two activation columns: at the peak of backward, gradients have already taken
the room of activations that are gone. Here recompute of every layer lowers the peak of the step by {saved}.
"""

# ---- screens in pages ------------------------------------------------------------------------------------------------------------

LOOK = Look(width=100, decimal=False, full=False, colour=False, ascii=False)
JOB = "llama-3-70b --gpus 8xA100-80GB --seq-len 2048"
OPEN, CLOSE = "<!-- demo: made by docs/generate.py -->\n", "<!-- /demo -->"


def readme() -> str:
    """../README.md with the top of the first screen that `make demo` prints: the verdict and what to change."""
    answer = memsheet.train(
        "llama-3-70b", gpus="8xA100-80GB", engine="fsdp2", zero=3, seq_len=2048, microbatch=4
    )
    return with_screen(
        "../README.md",
        f"memsheet train {JOB} --engine fsdp2 --zero 3 --microbatch 4",
        "\n\n".join(render_answer(answer, LOOK).split("\n\n")[:2]),
    )


def first_minute() -> str:
    """guides/first-minute.md with all of it."""
    answer = memsheet.train(
        "llama-3-70b", gpus="8xA100-80GB", engine="fsdp2", zero=3, seq_len=2048, microbatch=4
    )
    command = f"memsheet train {JOB} --engine fsdp2 --zero 3 --microbatch 4"
    return with_screen("guides/first-minute.md", command, render_answer(answer, LOOK))


def planning() -> str:
    """guides/plan.md with the second."""
    advice = memsheet.plan("llama-3-70b", gpus="8xA100-80GB", seq_len=2048, global_batch=32)
    return with_screen(
        "guides/plan.md", f"memsheet plan train {JOB} --global-batch 32", render_plans(advice, LOOK)
    )


SERVED = "llama-3.1-8b --gpus 1xH100-80GB --engine vllm --max-model-len 8192 --prompt-tokens 1500 --output-tokens 500"


def serving() -> str:
    """guides/serve.md with the screen of a server."""
    answer = memsheet.infer(
        "llama-3.1-8b", gpus="1xH100-80GB", engine="vllm", max_model_len=8192, prompt_tokens=1500, output_tokens=500
    )  # fmt: skip
    return with_screen("guides/serve.md", f"memsheet infer {SERVED}", render_answer(answer, LOOK))


LAUNCH = DOCS.parent / "tests/wild_configs/ve-grpo-qwen3-8b.sh"
"""verl's examples/grpo_trainer/run_qwen3-8b.sh."""
TAKING_TURNS = "trl-grpo --model Qwen/Qwen3-4B --gpus 1xH100-80GB --max-completion-length 4096"


def several_models() -> str:
    """guides/jobs.md with the tops of two screens: a launch's verdict and phases, and those of a job that is
    said in flags, with what helps.
    """
    checked = memsheet.check(LAUNCH, gpus="8xH100-80GB")
    launch = "\n\n".join(render_checked(checked, LOOK).split("\n\n")[:3])
    where = {"gpus": "1xH100-80GB"}
    answer = memsheet.job("trl-grpo", model="Qwen/Qwen3-4B", max_completion_length=4096, **where)
    helps = tuple((one.words, one.says, one.answer) for one in what_helps(answer, where))
    screen = "\n\n".join(render_job(answer, LOOK, helps).split("\n\n")[:4])
    return with_screens(
        "guides/jobs.md",
        ("memsheet check run_qwen3-8b.sh --gpus 8xH100-80GB", launch),
        (f"memsheet job {TAKING_TURNS}", screen),
    )


DIED = "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 79.15 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this process has 66.41 GiB memory in use. Of the allocated memory 56.55 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated."


def diagnosing() -> str:
    """guides/diagnose.md with the screen of a message."""
    return with_screen(
        "guides/diagnose.md", f'memsheet diagnose "{DIED}"', render_diagnosis(memsheet.diagnose(DIED), LOOK)
    )


def with_screen(name: str, command: str, screen: str) -> str:
    """A page with its screen made anew."""
    return with_screens(name, (command, screen))


def with_screens(name: str, *screens: tuple[str, str]) -> str:
    """A page with its screens made anew, (command, screen) in the order in which they stand."""
    before, *parts = (DOCS / name).read_text(encoding="utf-8").split(OPEN)
    made = (
        f"{OPEN}```\n$ {command}\n{screen.rstrip()}\n```\n{CLOSE}{part.split(CLOSE)[1]}"
        for part, (command, screen) in zip(parts, screens, strict=True)
    )
    return before + "".join(made)


PAGES = {
    "reference/worked_examples.md": worked_examples,
    "concepts/recompute.md": recompute,
    "concepts/parallelism.md": parallelism.page,
    "guides/first-minute.md": first_minute,
    "guides/plan.md": planning,
    "guides/serve.md": serving,
    "guides/jobs.md": several_models,
    "guides/diagnose.md": diagnosing,
    "../README.md": readme,
    **messages.PAGES,
}


def write() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
