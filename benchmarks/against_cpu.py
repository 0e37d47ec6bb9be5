"""Formulas and trace beside a real step of the same model on this machine's processor, under PyTorch's
profiler. Nothing is asserted.

    python benchmarks/against_cpu.py [--only WORDS] [--every N] [--json]

Each configuration is trained three times for two steps: traced on fake tensors; traced on real ones, to be
compared event by event; and run without memsheet under torch.profiler, whose allocation records also hold
what kernels take for themselves. Where those differ from the trace, the operations that took it are named.
Where the formulas model it, they predict it too, with a processor's kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product, zip_longest
from typing import Any

import torch

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.measure.profiler import profile_memory_peaks
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.run.step import At
from memsheet.run.train import build_trainer
from memsheet.timeline import Peak, Timeline, highest_peak, instant_peaks, live_storages
from memsheet.trace.job import MICRO, STEPS, How, trace_training

Config = Mapping[str, Any]

_SMALL = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_GATED = {**_SMALL, "intermediate_size": 688, "num_key_value_heads": 2}
FAMILIES: dict[str, Config] = {
    "dense": {"model_type": "llama", **_GATED},
    "gpt2": {"model_type": "gpt2", "vocab_size": 4000, "n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "moe": {
        "model_type": "qwen3_moe", **_GATED, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 64,
    },
    "latent": {
        "model_type": "deepseek_v3", **_GATED, "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 128, "first_k_dense_replace": 1,
    },
    "window": {
        "model_type": "gemma3_text", **_GATED, "head_dim": 64, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "encoder": {"model_type": "bert", **_SMALL, "intermediate_size": 1024, "architectures": ["BertForMaskedLM"]},
    "seq2seq": {
        "model_type": "t5", "vocab_size": 4000, "d_model": 256, "d_ff": 512, "d_kv": 64, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Six kinds of attention and feed-forward, and an encoder beside a decoder. Sizes are such that a peak is
tens of MB.
"""

NOTEWORTHY = 0.001

TECHNIQUES: tuple[Mapping[str, Any], ...] = (
    {"precision": "fp16-autocast"}, {"precision": "bf16-master"}, {"precision": "fp32", "recompute_every": 2},
    {"precision": "fp32", "recompute_segments": 3}, {"precision": "fp32", "recompute_layers": 2},
    {"precision": "fp32", "recompute_modules": ("mlp",)},
    {"precision": "bf16-pure", "loss": "chunked"}, {"precision": "bf16-pure", "loss": "fused"}, {"precision": "fp32", "loss": "fused"},
    {"precision": "fp32", "optimizer_in_backward": True}, {"precision": "fp32", "optimizer": "sgd", "optimizer_in_backward": True},
    {"precision": "fp32", "global_batch": 7}, {"precision": "bf16-autocast", "recompute": "full", "loss": "chunked"},
)  # fmt: skip
"""What is done to a step besides, one at a time."""

_FOREACH, _LOOP, _FUSED = ({"optimizer_implementation": name} for name in ("foreach", "loop", "fused"))
_STEPS = (_FOREACH, _LOOP, _FUSED, {"optimizer": "sgd"}, {"optimizer": "sgd_momentum"})
_BASE = {"seq_len": 128, "microbatch": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration: the model, and what is asked of it in the plan's short names."""

    name: str
    config: Config
    request: Mapping[str, Any]

    @property
    def plan(self) -> Plan:
        """The whole plan, for one device."""
        return resolve_request({**request_from(dict(self.request)), "task": "train"}, None, real=True).plan


def cases() -> Iterator[Case]:
    """Every family, attention and recomputation, with the optimizers in turn; then other precisions and kinds
    of steps.
    """
    crossed = product(FAMILIES.items(), ("sdpa", "eager"), ("none", "full"))
    for number, ((family, config), attention, recompute) in enumerate(crossed):
        precision = (
            "bf16-pure" if number % 4 == 2 + number // 4 % 2 else "fp32"
        )  # a processor multiplies bf16 ten times slower
        request = {
            "attention": attention,
            "recompute": recompute,
            "precision": precision,
            **_STEPS[number % len(_STEPS)],
        }
        yield _case(family, config, request)
    dense = FAMILIES["dense"]
    for more in (
        {"precision": "bf16-autocast", **_FOREACH},
        {"precision": "bf16-autocast", "attention": "eager", "recompute": "full", **_FUSED},
        {"precision": "bf16-pure", "global_batch": 8, **_LOOP},
        {"precision": "fp32", "dropout": 0.1, **_FUSED},
    ):
        yield _case("dense", dense, more)
    yield _case(
        "gpt2", FAMILIES["gpt2"], {"precision": "fp32", "attention": "eager", "dropout": 0.1, **_FOREACH}
    )
    yield _case(
        "dense lora",
        dense,
        {"precision": "bf16-pure", "lora_rank": 8, "lora_targets": ("q_proj", "v_proj"), **_FOREACH},
    )
    for technique in TECHNIQUES:
        yield _case("deep", {**dense, "num_hidden_layers": 4}, technique)


def _case(family: str, config: Config, request: Mapping[str, Any]) -> Case:
    words = (value if isinstance(value, str) else f"{key}={value}" for key, value in request.items())
    return Case(name=" ".join((family, *words)), config=config, request={**_BASE, **request})


def _train(config: Config, plan: Plan, at: At) -> None:
    """Two steps: the first makes the optimizer's states."""
    step = build_trainer(config, plan, "cpu", at, min(int(plan.accumulation), MICRO))
    for _ in range(STEPS):
        step()


# ---- side by side ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration. ``predicted_bytes``: None where the formulas do not model it; ``differs``: the first
    event in which fake and real tensors differ; ``unseen``: what was there at each instant's real high-water
    mark and not at the traced one, by operation; ``failure``: why there is no answer.
    """

    name: str
    predicted_bytes: int | None = None
    traced_bytes: int = 0
    real_bytes: int = 0
    events: int = 0
    differs: str = ""
    unseen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    instants: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    failure: str = ""

    @property
    def error(self) -> float:
        """(traced - real) / real."""
        return (self.traced_bytes - self.real_bytes) / self.real_bytes if self.real_bytes else 0.0

    @property
    def off(self) -> float | None:
        """(predicted - traced) / traced."""
        return (
            None
            if self.predicted_bytes is None or not self.traced_bytes
            else (self.predicted_bytes - self.traced_bytes) / self.traced_bytes
        )


def compare(case: Case) -> Row:
    """The three runs of one configuration. A failure of any is the row's."""
    try:
        plan = case.plan
        fake, real = (
            trace_training(case.config, plan, How(device="cpu", fake=on, scratch=False))
            for on in (True, False)
        )
        found = profile_memory_peaks(lambda at: _train(case.config, plan, at))
    except Exception as error:  # noqa: BLE001 - a configuration that fails is a row of the table
        return Row(
            name=case.name,
            failure=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        )
    tops = {instant.value: top for instant, top in instant_peaks(fake).items()}
    instants = {at: (tops[at].bytes if at in tops else 0, size) for at, size in found.instants.items()}
    return Row(
        name=case.name,
        predicted_bytes=predicted(case),
        traced_bytes=highest_peak(fake).bytes,
        real_bytes=max(found.instants.values()),
        events=len(fake.events),
        differs=difference(fake, real, any_order=plan.precision.casts),
        instants=instants,
        unseen={at: unseen(fake, top, found.tops.get(at, ())) for at, top in tops.items()},
    )


def predicted(case: Case) -> int | None:
    """The formulas' peak with a processor's kernels; None for what they do not model."""
    try:
        return int(
            account_rank(read_hf_config(case.config, name=case.name), case.plan, device="cpu").peak.value
        )
    except InputError:
        return None


def unseen(traced: Timeline, top: Peak, real: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """Bytes of a real high-water mark that no storage of the same size at the traced one accounts for, by the
    operation that made them.
    """
    sizes = Counter(traced.storages[number].bytes for number in live_storages(traced, top.at))
    found = Counter[str]()
    for op, size in real:
        if sizes[size]:
            sizes[size] -= 1
        else:
            found[op] += size
    return dict(found.most_common())


def difference(one: Timeline, other: Timeline, *, any_order: bool = False) -> str:
    """The first event in which two timelines differ, in order, size, component or operation; empty where
    there is none.

    ``any_order``: of releases with no allocation between them. Autocast lets go of its casts in the order of
    a hash of their addresses (ATen/autocast_mode.cpp, cached_casts), which is another in every process.
    """
    for number, (a, b) in enumerate(
        zip_longest(_events(one, any_order=any_order), _events(other, any_order=any_order))
    ):
        if a != b:
            return f"event {number}: {a} is {b} on real tensors"
    return "" if one.marks == other.marks else "instants begin at other events"


_Event = tuple[int, str, str, str]


def _events(timeline: Timeline, *, any_order: bool) -> Iterator[_Event]:
    """(bytes, operation, component, path) of each event, bytes negative for a release."""
    released: list[_Event] = []
    for event in timeline.events:
        storage = timeline.storages[event if event >= 0 else ~event]
        said = (
            storage.bytes if event >= 0 else -storage.bytes,
            storage.op,
            storage.component.value,
            storage.path,
        )
        if event < 0 and any_order:
            released.append(said)
            continue
        yield from sorted(released)
        released.clear()
        yield said
    yield from sorted(released)


def screen(rows: list[Row]) -> str:
    """The table, failures included."""
    lines = [
        (
            f"{'configuration':58} {'predicted':>13} {'traced':>13} {'real':>13} {'predicted':>10} "
            f"{'traced':>9} {'events':>7}  fake = real"
        )
    ]
    for row in rows:
        if row.failure:
            lines.append(f"{row.name:58} failed: {row.failure}")
            continue
        same = row.differs or "every event"
        guess = f"{'-':>13}" if row.predicted_bytes is None else f"{row.predicted_bytes:13,}"
        off = f"{'-':>10}" if row.off is None else f"{row.off:+10.4%}"
        sizes = f"{guess} {row.traced_bytes:13,} {row.real_bytes:13,} {off} {row.error:+9.4%}"
        lines.append(f"{row.name:58} {sizes} {row.events:7}  {same}{_more(row)}")
    done = [row for row in rows if not row.failure]
    worst = max((abs(row.error) for row in done), default=0.0)
    guessed = [row.off for row in done if row.off is not None]
    equal = sum(not row.differs for row in done)
    kept = (
        f"{len(rows)} configurations, {len(rows) - len(done)} failed; trace: worst {worst:.4%}, "
        f"{equal} equal event by event"
    )
    named = (
        f"formulas: {len(guessed)} configurations, worst {max(map(abs, guessed), default=0.0):.4%} of "
        "the traced peak"
    )
    return "\n".join([*lines, kept, named])


def _more(row: Row) -> str:
    """Instants whose high-water marks differ by more than a thousandth, and what the real peak holds beside
    the traced one.
    """
    top = max(row.instants, key=lambda at: row.instants[at][1])
    off = {at: (traced - real) / real for at, (traced, real) in row.instants.items()}
    shown = [at for at in off if at == top or abs(off[at]) > NOTEWORTHY]
    return "".join(
        f"; {at} {off[at]:+.3%} without {_sizes(row.unseen[at])}" for at in shown if row.unseen.get(at)
    )


def _sizes(found: Mapping[str, int]) -> str:
    return ", ".join(f"{op} {size:,}" for op, size in found.items())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="configurations whose names hold these words")
    parser.add_argument("--every", type=int, default=1, help="one configuration in so many")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of libraries
    torch.set_num_threads(1)  # some kernels take scratch for each thread
    torch.manual_seed(0)
    rows = [
        compare(case)
        for case in list(cases())[:: given.every]
        if all(word in case.name.split() for word in given.only.split())
    ]
    print(
        json.dumps([{**asdict(row), "error": row.error, "off": row.off} for row in rows])
        if given.json
        else screen(rows)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
