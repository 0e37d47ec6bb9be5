"""Seconds of a token and of a prompt, as intervals."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.errors import input_error
from memsheet.formulas.operators.blocks import head_operator
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.formulas.serving_time.between import exchanged_s, replays_cuda_graph
from memsheet.formulas.serving_time.layers import Layer, decoder_layers
from memsheet.formulas.serving_time.operators import Pass, ServeTiming, flops_per_s, seconds_of
from memsheet.formulas.serving_time.speeds import End, Speeds, format_of, speeds_of
from memsheet.formulas.step_time.numbers import Real, larger
from memsheet.frozen import dataclass
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import CrossAttention, ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.references import SAMPLER_CODE, formula

SAMPLER_CALLS = {End.FAST: 0, End.VALUE: 10, End.SLOW: 35}
"""Operations between two graphs: none where the next pass is prepared beside this one; a draw without
filters; top-k, top-p and penalties.
"""
SAMPLER_BYTES = {End.FAST: 6, End.VALUE: 26, End.SLOW: 120}
"""Read and written for each logit: cast and the largest; cast, divided, softmax, the largest; sorted, summed
and put back besides.
"""
WHY = (
    "operators timed one by one on the card or one of its kind (serving_rates.toml, rates.toml): "
    "expected, 95th and 5th percentile of their speed; "
    "no load of a server was fitted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """``low`` ≤ ``value`` ≤ ``high``; ``parts`` of the value add up to it."""

    low: float
    value: float
    high: float
    parts: Mapping[str, float]
    evidence: str = WHY

    def plus(self, other: Seconds, times: float = 1.0) -> Seconds:
        """The sum with ``times`` the other."""
        names = dict.fromkeys((*self.parts, *other.parts))
        parts = {name: self.parts.get(name, 0.0) + times * other.parts.get(name, 0.0) for name in names}
        return Seconds(
            low=self.low + times * other.low,
            value=self.value + times * other.value,
            high=self.high + times * other.high,
            parts=parts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A plan on a cluster, its layers looked at once for many questions."""

    spec: ModelSpec
    plan: Plan
    cluster: Cluster
    layers: tuple[Layer, ...]
    speeds: Mapping[End, Speeds]
    uneven: float

    @classmethod
    def of(cls, spec: ModelSpec, plan: Plan, cluster: Cluster) -> Timer:
        """Raises InputError for what is not timed."""
        _check_serving_timed(spec)
        own = group_plan(plan)
        speeds = {end: speeds_of(cluster, end) for end in End}
        return cls(
            spec=spec,
            plan=own,
            cluster=cluster,
            layers=decoder_layers(spec, plan),
            speeds=speeds,
            uneven=_stage_imbalance(spec, own),
        )

    def decode(self, batch: int, context: int) -> Seconds:
        """As ``decode_time``."""
        return self._timed((self._step(batch, context),))

    def decode_s(
        self, end: End, batch: int, context: int, beside_s: float = 0.0, enough_s: float = float("inf")
    ) -> float:
        """One end of ``decode``, and ``beside_s`` more. Where the slow end alone is beyond ``enough_s`` it
        says so, whatever the value is.
        """
        work = (self._step(batch, context),)
        found = sum(self._at(work, end).values()) + beside_s
        if end is End.VALUE or (end is End.SLOW and found > enough_s):
            return found
        value = sum(self._at(work, End.VALUE).values()) + beside_s
        return min(found, value) if end is End.FAST else max(found, value)

    def prefill(self, tokens: int, cached: int = 0) -> Seconds:
        """As ``prefill_time``."""
        chunk = int(self.plan.serving.max_batched_tokens or tokens) or tokens
        starts = range(cached, cached + max(1, tokens), chunk)
        return self._timed(
            tuple(
                Pass(sequences=1, fresh=max(2, min(chunk, cached + tokens - at)), cached=at) for at in starts
            )
        )

    @property
    def _stages_at_once(self) -> int:
        """Stages that work at the same time; transformers' device_map is one after another."""
        return self.plan.mesh.pp if engine_of(self.plan).serving.stages_at_once else 1

    def _step(self, batch: int, context: int) -> Pass:
        each = -(-batch // self._stages_at_once)
        return Pass(sequences=max(1, each), cached=max(1, context))

    def _timed(self, passes: tuple[Pass, ...]) -> Seconds:
        parts = self._at(passes, End.VALUE)
        fast, value, slow = (
            sum(self._at(passes, End.FAST).values()),
            sum(parts.values()),
            sum(self._at(passes, End.SLOW).values()),
        )
        return Seconds(low=min(value, fast), value=value, high=max(value, slow), parts=parts)

    def _at(self, passes: tuple[Pass, ...], end: End) -> dict[str, float]:
        """Seconds by part at one end of the interval."""
        spec, plan = self.spec, self.plan
        engine, speeds, uneven = engine_of(plan), self.speeds[end], self.uneven
        beside = self._beside(len(passes)) if end is End.FAST else 1.0
        total: dict[str, float] = {}
        for number, work in enumerate(passes):
            shop = ServeTiming(plan=plan, engine=engine, speeds=speeds, work=work)
            found = {
                name: seconds * uneven * beside for name, seconds in seconds_of(self.layers, shop).items()
            }
            found["exchange"] = exchanged_s(spec, self.layers, shop)
            found["waiting"] = max(0.0, _calls_s(spec, shop) - sum(found.values()))
            if number == len(passes) - 1:
                found |= head_and_sampler_s(spec, shop)
            for name, seconds in found.items():
                total[name] = total.get(name, 0.0) + seconds
        return total

    def _beside(self, passes: int) -> float:
        """Of the layers' time, where a prompt's parts follow one another through stages: n parts and p stages
        take n + p - 1 turns of n p.
        """
        stages = self._stages_at_once
        return (passes + stages - 1) / (passes * stages)


def decode_time(spec: ModelSpec, plan: Plan, cluster: Cluster, batch: int, context: int) -> Seconds:
    """Seconds between two tokens of a sequence where a replica decodes ``batch`` sequences that hold
    ``context`` tokens each.

    A server with pipeline stages has as many batches on their way, each with its share of the sequences; a
    token passes every stage. Raises InputError for what is not timed.
    """
    return Timer.of(spec, plan, cluster).decode(batch, context)


def prefill_time(spec: ModelSpec, plan: Plan, cluster: Cluster, tokens: int, cached: int = 0) -> Seconds:
    """Seconds until the first token of one prompt of ``tokens`` that waits for nobody, in chunks of
    max_batched_tokens; ``cached``: of its beginning that are there.
    """
    return Timer.of(spec, plan, cluster).prefill(tokens, cached)


def token_time(decode: Seconds, prefill: Seconds, batch: int, output: int) -> Seconds:
    """Seconds a token where ``batch`` sequences come and go: while one makes ``output`` tokens, every other's
    prompt is read once.
    """
    return decode.plus(prefill, batch / max(1, output))


def _check_serving_timed(spec: ModelSpec) -> None:
    mixers = spec.mixers()
    if any(stack.role == "encoder" for stack in spec.stacks) or any(
        isinstance(mixer, CrossAttention) for mixer in mixers
    ):
        raise input_error(
            "model",
            spec.name,
            "reads another sequence, whose passes are not timed",
            "memsheet infer tells its memory",
        )


def _stage_imbalance(spec: ModelSpec, plan: Plan) -> float:
    """Stages wait for the one with the most layers."""
    count = spec.layers
    most = max(plan.layers_per_stage) if plan.layers_per_stage else -(-count // plan.mesh.pp)
    return max(1.0, most * plan.mesh.pp / count)


def _calls_s(spec: ModelSpec, shop: ServeTiming) -> float:
    """Of the host, where it starts every kernel."""
    if replays_cuda_graph(shop):
        return 0.0
    return spec.layers * shop.engine.serving.layer_calls * shop.speeds.call_s


@formula(
    cites=SAMPLER_CODE,
    at="v1/sample/sampler.py: operations on the logits of every sequence, from a cast to sorting and back",
)
def head_and_sampler_s(spec: ModelSpec, shop: ServeTiming) -> dict[str, Real]:
    """The logits of each sequence's last token, and the choice of the next."""
    if spec.head.kind == "none":
        return {"logits": 0.0, "sampler": 0.0}
    plan, engine, speeds, rows = shop.plan, shop.engine, shop.speeds, shop.work.sequences
    op = head_operator(spec.head, spec.hidden)
    whole = Role.HEAD in engine.whole_roles
    dtype, cut = plan.precision.parameters, 1 if whole else plan.mesh.tp
    if plan.quantization is not None and engine.serving.quantizes_head:
        dtype = plan.quantization.weights
    line = speeds.product[format_of(dtype)]
    flops = 1.0 * rows * op.flops / cut / flops_per_s(shop, format_of(dtype), rows, op.reads)
    logits = line.start_s + larger(dtype.nbytes(op.reads * op.writes) / cut / line.bytes_per_s, flops)
    calls = 0 if engine.serving.compiles_sampler else SAMPLER_CALLS[speeds.end]
    return {
        "logits": logits,
        "sampler": calls * speeds.call_s + rows * op.writes * SAMPLER_BYTES[speeds.end] / speeds.memory,
    }
