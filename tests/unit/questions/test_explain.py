"""Every word of a sheet, every formula and the words that people bring are explained."""

from __future__ import annotations

import json
import re

import pytest

from laws import every
from memsheet import references
from memsheet.catalog import glossary_terms
from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.plan.engine_registry import MODELLED
from memsheet.plan.names import SHORT
from memsheet.questions.explain import (
    WHOLE_NUMBERS,
    _catalog_term,
    _catalog_terms,
    _index_terms,
    _shortest_ends,
    all_terms,
    explain,
)
from memsheet.references import FORMULAS
from memsheet.sheet import Component, Instant

PEOPLE_SAY = """
gradient_checkpointing fragmentation kv fsdp mfu nf4 gguf moe batch_size oom adamw grpo bf16 mixed_precision flash_attention
paged_attention gradient_accumulation loss_scaling expandable_segments vram activations weights logits zero3 zero-2 ddp hsdp tensor_parallel
pipeline_parallelism context_length cpu_offload awq gptq qlora dora dpo ppo sft liger torch_compile nccl gqa mla speculative_decoding
prefix_caching chunked_prefill gpu_memory_utilization max_num_seqs n_gpu_layers empty_cache nvidia-smi GiB 8bit fp8 max_memory_allocated
""".split()  # noqa: SIM905


def test_a_word_that_is_read_alone_is_that_of_the_whole_table() -> None:
    for key, term in _index_terms(_catalog_terms()).items():
        assert _catalog_term(key) == term


@every(
    "word",
    [
        *PEOPLE_SAY,
        "CUDA out of memory",
        "CUDA Out Of Memory",
        "torch.cuda.OutOfMemoryError",
        "Flash Attention 2",
    ],
)
def test_a_word_that_people_bring_is_explained(word: str) -> None:
    assert len(explain(word).text) > 40


@pytest.mark.slow
def test_every_formula_is_reached_by_a_name_of_its_own() -> None:
    formulas = [term for term in all_terms() if term.kind == "formula"]
    assert len(formulas) == len(FORMULAS) == len({term.name for term in formulas})
    assert all(explain(term.name) == term for term in all_terms())


def test_a_formula_of_whole_numbers_says_so() -> None:
    told = {term.name for term in all_terms() if term.kind == "formula" and WHOLE_NUMBERS in term.text}
    known = {name for name, (_, _, counts) in FORMULAS.items() if counts == "int"}
    assert len(told) == len(known)
    assert all(any(name.endswith(end.rpartition(".")[2]) for name in known) for end in told)


def test_a_name_that_several_formulas_share_lists_them() -> None:
    words = {word for term in all_terms() for word in (term.name, *term.also)}
    dotted = sorted(term.name for term in all_terms() if term.kind == "formula" and "." in term.name)
    shared = [name for name in dotted if name.rpartition(".")[2] not in words]
    assert shared
    for name in shared:
        with pytest.raises(InputError, match=re.escape(name)):
            explain(name.rpartition(".")[2])


def test_ends_are_as_short_as_they_can_be() -> None:
    ends = _shortest_ends(["p.a._f", "p.b.f", "p.b.g", "p.b.zero"], taken={"zero"})
    assert ends == {"p.a._f": "a.f", "p.b.f": "b.f", "p.b.g": "g", "p.b.zero": "b.zero"}


def test_the_catalogue_knows_every_component_instant_and_engine() -> None:
    assert set(glossary_terms()["component"]) == {c.value for c in Component}
    assert set(glossary_terms()["instant"]) == {i.value for i in Instant}
    assert {term.name for term in all_terms() if term.kind == "engine"} == set(MODELLED)


def test_a_term_says_whom_it_cites_and_no_word_stands_for_two() -> None:
    entries = [
        entry
        for table in (
            glossary_terms()["component"],
            glossary_terms()["instant"],
            *glossary_terms()["word"].values(),
        )
        for entry in table.items()
    ]
    assert all(hasattr(references, entry["cites"]) for _, entry in entries if "cites" in entry)
    words = [word for name, entry in entries for word in (name, *entry.get("also", ()))]
    assert sorted(words) == sorted(set(words))


def test_flags_that_texts_name_exist() -> None:
    own = {f"--{name.replace('_', '-')}" for name in SHORT}
    others = {
        "--json",
        "--units",
        "--gpus",
        "--offload",
        "--ttft",
        "--tpot",
        "--steps",
        "--enforce-eager",
        "--mem-fraction-static",
    }
    said = {
        flag
        for term in all_terms()
        if term.kind != "formula"
        for flag in re.findall(r"--[a-z][a-z-]+", term.text)
    }
    assert said <= own | others


def test_the_list_is_grouped_and_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 60
    assert "recompute" in out
    assert main(["explain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["terms"]
    assert {name for row in rows for name in row["names"]} == {term.name for term in all_terms()}
