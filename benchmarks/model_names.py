"""How many of the model names that public examples use are resolved without a network, and by what.

    python benchmarks/model_names.py                               the tables, of the names kept in data/
    python benchmarks/model_names.py --missing                     and every name that is not, by how often
    python benchmarks/model_names.py --extract SET PROJECT=FOLDER@COMMIT …   read a set anew from checkouts

Names are facts: data/model_names.json keeps them with how often each project's examples name it, and with the
bundled model that it is of where somebody has looked (``of``). Nothing else of the examples is kept. The
rules for names were written beside the first set; the others keep names of projects that they were not
written for, taken whole before any was looked up. The fourth is only counted: rules and catalogue are
written without a look at what is missing in it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memsheet.catalog.names import bundled_match, held_name, other_kind
from memsheet.errors import InputError

DATA = Path(__file__).parent / "data"
SCHEMA = "memsheet/model-names/1"
READ_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "model_names": {
        "axolotl-ai-cloud/axolotl": ("examples",), "hiyouga/LLaMA-Factory": ("examples",),
        "huggingface/trl": ("examples", "docs"), "vllm-project/recipes": (".",),
    },
    "other_model_names": {
        "EleutherAI/lm-evaluation-harness": ("README.md", "docs", "examples"), "NVIDIA-NeMo/RL": ("docs", "examples"),
        "OpenRLHF/OpenRLHF": ("README.md", "examples"), "allenai/open-instruct": ("docs", "scripts"),
        "modelscope/ms-swift": ("examples",), "pytorch/torchtune": ("recipes",), "unslothai/notebooks": ("nb",),
        "vllm-project/llm-compressor": ("examples",), "volcengine/verl": ("docs", "examples"),
    },
    "third_model_names": {
        "Lightning-AI/litgpt": ("config_hub", "tutorials"), "NVIDIA/Megatron-LM": ("docs", "examples"),
        "NVIDIA/Model-Optimizer": ("docs", "examples"), "NVIDIA/NeMo": ("docs", "examples", "tutorials"),
        "deepspeedai/DeepSpeedExamples": ("applications", "benchmarks", "inference", "training"),
        "huggingface/peft": ("docs", "examples"), "ml-explore/mlx-lm": ("README.md", "mlx_lm"),
        "sgl-project/sgl-cookbook": ("docs",),
    },
    "fourth_model_names": {
        "InternLM/lmdeploy": ("README.md", "docs"), "InternLM/xtuner": ("docs", "examples"),
        "NVIDIA-NeMo/Megatron-Bridge": ("docs", "examples", "tutorials"), "NovaSky-AI/SkyRL": ("docs", "examples"),
        "huggingface/alignment-handbook": ("recipes",),
        "huggingface/text-generation-inference": ("README.md", "docs"),
    },
}  # fmt: skip
"""Set of names → project → the folders and files that are read."""
ENDINGS = (".yaml", ".yml", ".md", ".py", ".sh", ".ipynb", ".json", ".qmd")
MOST_BYTES = 2**21
_ID = r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?::[\w.-]+)?)"
SAYS = re.compile(
    rf"(?:base_model|model_name_or_path|model_id|model_name|model-path|--model|\bmodel|_model|vllm serve"
    rf"|--reward[_-]model(?:_path)?|from_pretrained|pretrain(?:ed)?|model\.path|MODEL_PATH|tune download)"
    rf"(?:\\?[\"'])?(?:\s*[:=(]\s*|\s+)(?:\\?[\"'])?{_ID}(?=[\s\"'\\,)#]|$)",
    re.MULTILINE,
)
"""What stands before a model's name in a command, a configuration or a script."""
PLACEHOLDERS = re.compile(
    r"^(?:path|your|org|username|outputs?|saves|models|data|my|user|tmp)[\w-]*/"
    r"|^(?:checkpoints?|runs|examples|community)[\w-]*/|^(?:i|inputs?|loading|training)/[a-z]+$|^azure/"
    r"|^(?:export|model|name|original|out|provider|save|some|trained|weights)/|^vit-[a-z]/\d+$|/base_model$"
    r"|/checkpoint-\d+$|^Qwen/Qwen$|\.(?:py|sh|md|json|ya?ml|html|jinja)$",
    re.IGNORECASE,
)


Row = dict[str, Any]
REFUSED = "refused by name"
"""What makes pictures, video or sound, and is accounted by nobody here, said so."""
PARTS = {"draft": "a draft, said whose", "adapter": "an adapter, said whose"}
"""What is no model by itself, and is refused with the model to ask for, where its name holds one."""


class Told(NamedTuple):
    """How a name is resolved, and of which bundled model."""

    how: str
    model: str = ""


def resolved_name(name: str) -> Told:
    """By what a name is resolved where nobody can be asked; else why not."""
    try:
        found = bundled_match(name)
    except InputError:
        return Told(REFUSED)
    if found is None:
        kind, of = other_kind(name)
        if kind and of:
            return Told(PARTS[kind])
        inside = held_name(name)
        return (
            Told("not: tuned or changed from one that is bundled", inside)
            if inside
            else Told("not: not bundled")
        )
    if found.exact:
        return Told("its own name", found.name)
    if found.held:
        return Told("stated to be that model, or holds its name, said", found.name)
    if found.storage is not None:
        return Told("a stored form", found.name)
    return Told("another spelling or owner" if found.sure else "an unknown owner's copy, said", found.name)


def is_resolved(told: Told) -> bool:
    return bool(told.model) and not told.how.startswith("not")


def names_in(folder: Path, below: tuple[str, ...]) -> Counter[str]:
    """Models' names in the files of a checkout, by how often each stands there."""
    found: Counter[str] = Counter()
    for part in below:
        for path in sorted((folder / part).rglob("*")) or [folder / part]:
            if path.suffix in ENDINGS and path.is_file() and path.stat().st_size <= MOST_BYTES:
                found.update(ids_in(path.read_text(encoding="utf-8", errors="replace")))
    return found


def ids_in(text: str) -> Iterator[str]:
    """Models' names in a text, where it says that they are models'."""
    for name in SAYS.findall(text):
        bare = name.rstrip(".")
        if not PLACEHOLDERS.search(bare) and not bare.startswith(("datasets/", "spaces/")):
            yield bare


def extracted(
    folders: dict[str, tuple[str, ...]], sources: list[str], before: dict[str, str]
) -> dict[str, Any]:
    """The data file of checkouts. ``before``: names that somebody has looked at."""
    seen: dict[str, dict[str, int]] = {}
    read = []
    for source in sources:
        project, _, rest = source.partition("=")
        folder, _, commit = rest.rpartition("@")
        read.append({"repository": project, "commit": commit, "folders": list(folders[project])})
        for name, count in names_in(Path(folder), folders[project]).items():
            seen.setdefault(name, {})[project] = count
    names = [
        {"name": name, "seen": seen[name], **({"of": before[name]} if name in before else {})}
        for name in sorted(seen)
    ]
    return {"schema": SCHEMA, "sources": read, "names": names}


def data_text(held: dict[str, Any]) -> str:
    """The data file, a name a line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in held["names"])
    return f'{{"schema": "{SCHEMA}",\n "sources": {json.dumps(held["sources"])},\n "names": [\n{rows}\n ]}}\n'


def table_lines(rows: list[Row]) -> Iterator[str]:
    """By what names are resolved, project by project and together."""
    told = {row["name"]: resolved_name(row["name"]) for row in rows}
    projects = sorted({project for row in rows for project in row["seen"]})
    columns = {project: [row["name"] for row in rows if project in row["seen"]] for project in projects}
    columns["all"] = list(told)
    yield f"{'':54}" + "".join(f"{project.rpartition('/')[2]:>15}" for project in columns)
    for how in sorted({each.how for each in told.values()}, key=lambda text: (text.startswith("not"), text)):
        cells = (sum(told[name].how == how for name in names) for names in columns.values())
        yield f"{how:54}" + "".join(f"{cell:>15}" for cell in cells)
    whole = [[is_resolved(told[name]) for name in names] for names in columns.values()]
    yield f"{'resolved':54}" + "".join(f"{f'{sum(each)} of {len(each)}':>15}" for each in whole)
    yield f"{'':54}" + "".join(f"{sum(each) / len(each):>15.1%}" for each in whole)
    refused = sum(each.how == REFUSED for each in told.values())
    parts = sum(each.how in PARTS.values() for each in told.values())
    yield f"{refused} make pictures, video or sound, rightly refused; {parts} are drafts and adapters"
    for rest, words in ((len(told) - refused, "first"), (len(told) - refused - parts, "both")):
        yield f"without the {words}, of {rest} resolve {sum(whole[-1])}, {sum(whole[-1]) / max(rest, 1):.1%}"
    looked = {row["name"]: row["of"] for row in rows if "of" in row}
    wrong = [name for name, of in looked.items() if is_resolved(told[name]) and told[name].model != of]
    lost = [name for name in looked if not is_resolved(told[name])]
    known = sum(is_resolved(told[name]) for name in looked)
    yield (
        f"of {len(looked)} names that somebody looked at, resolved {known}, to another model {len(wrong)}, "
        f"no more {len(lost)}"
    )
    yield from (f"  WRONG  {name}: {told[name].model}, is {looked[name]}" for name in wrong)


def missing_lines(rows: list[Row]) -> Iterator[str]:
    """Names that are not resolved, those that most examples name first, with what they hold."""
    for row in sorted(rows, key=lambda row: (-sum(row["seen"].values()), row["name"])):
        told = resolved_name(row["name"])
        if not is_resolved(told):
            held = f"  (holds {told.model})" if told.model else ""
            yield f"{sum(row['seen'].values()):5}  {row['name']}{held}"


def kept_names(name: str) -> dict[str, Any]:
    """A data file, without names where there is none."""
    path = DATA / f"{name}.json"
    held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"names": []}
    return held


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extract", nargs="+", metavar="SET PROJECT=FOLDER@COMMIT")
    parser.add_argument("--missing", action="store_true")
    asked = parser.parse_args()
    if asked.extract:
        name, *sources = asked.extract
        looked = {row["name"]: row["of"] for row in kept_names(name)["names"] if "of" in row}
        made = extracted(READ_OF[name], sources, looked)
        (DATA / f"{name}.json").write_text(data_text(made), encoding="utf-8")
    for name in READ_OF:
        rows = kept_names(name)["names"]
        print(f"{name}.json\n" + "\n".join(table_lines(rows)))
        if asked.missing:
            print("\n".join(missing_lines(rows)))


if __name__ == "__main__":
    main()
