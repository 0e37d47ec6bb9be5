"""Every kind of model traces, known to memsheet's readers or not; stand-ins keep what the kernels they stand
for keep.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import warm_children

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from memsheet.questions.traced import Options, trace_with_timelines  # noqa: E402
from memsheet.trace.scans import CHUNK, causal_conv1d_fn, mamba_inner_fn, selective_scan_fn, stand_ins  # noqa: E402

pytestmark = pytest.mark.usefixtures("warm_children")
HERE = Path(__file__).parents[2]
REFUSED = {
    "rwkv bf16-pure": "Python over the tokens", "clip bf16-pure": "neither a loss", "mamba bf16-pure cpu": "--device cuda",
    "codegen bf16-pure sdpa": "--attention eager",
}  # fmt: skip
FUSED, CONVOLVED, SCANNED = (
    "mamba-ssm: mamba_inner_fn",
    "causal-conv1d: causal_conv1d_fn",
    "mamba-ssm: selective_scan_fn",
)
EIGHT_BITS = "qwen2 bf16-pure adamw_8bit"
FOUR_BITS = "bitsandbytes: Linear4bit"


@pytest.fixture(scope="module")
def cases():
    return json.loads(warm_children.printed(HERE / "family_cases.py"))


@pytest.mark.slow
def test_families_trace_or_say_why_not(cases):
    refused = {
        name: case["refused"] for name, case in cases.items() if "refused" in case and name != EIGHT_BITS
    }
    assert refused.keys() == REFUSED.keys()
    for name, words in REFUSED.items():
        assert words in refused[name]
        assert cases[name]["seconds"] < 5  # nobody waits for Python over the tokens


@pytest.mark.slow
def test_the_parameters_that_are_counted_are_those_that_are_there(cases):
    for name, case in cases.items():
        if "refused" not in case and "4" not in name.split():  # adapters are no parameters of the model's
            width = 2 if "bf16-pure" in name else 4
            assert case["held"]["parameters"] == width * case["facts"]["parameters"], name
            assert case["sums"], name


def test_a_step_has_all_its_instants(cases):
    for name, case in cases.items():
        assert "refused" in case or case["instants"] == [
            "load",
            "forward",
            "loss",
            "backward",
            "optimizer_step",
        ], name


def test_adapters_alone_have_gradients(cases):
    plain, quantized = (case for name, case in cases.items() if "4" in name.split())
    matrices = 2 * 4 * (64 + 64 + 64 + 32)  # two layers, rank 4: to and from q_proj and v_proj
    assert plain["held"]["gradients"] == quantized["held"]["gradients"] == 4 * matrices
    assert plain["held"]["parameters"] == 2 * plain["facts"]["parameters"] + 4 * matrices
    assert quantized["held"]["parameters"] < plain["held"]["parameters"]


def test_states_in_eight_bits_are_the_librarys_own(cases):
    case = cases[EIGHT_BITS]
    if find_spec("bitsandbytes") is None:
        assert "pip install bitsandbytes" in case["refused"]
    else:
        assert case["held"]["optimizer_states"] < 2 * case["held"]["parameters"]


def test_stand_ins_are_named(cases):
    named = {
        name: case["facts"]["stand_ins"]
        for name, case in cases.items()
        if case.get("facts", {}).get("stand_ins")
    }
    assert (
        named.pop("mamba bf16-pure")
        == named.pop("mamba bf16-autocast")
        == named.pop("falcon_mamba bf16-pure")
        == [FUSED]
    )
    assert named.pop("bamba bf16-pure") == ["mamba-ssm: mamba_split_conv1d_scan_combined"]
    assert named.pop("jamba bf16-pure") == named.pop("jamba bf16-autocast") == [CONVOLVED, SCANNED]
    assert list(named.values()) == [[FOUR_BITS]]


@pytest.mark.slow
def test_a_family_that_only_the_library_knows_is_counted(tmp_path):
    config = {"model_type": "codegen", "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256, "n_ctx": 256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer, _ = trace_with_timelines(
        str(tmp_path), Options(), seq_len=64, precision="bf16-pure", attention="eager"
    )
    layer = (
        64 * 192 + 64 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * 64
    )  # qkv and output without biases, two matrices with, one norm
    assert answer.parameters == 320 * 64 + 2 * layer + 2 * 64 + 64 * 320 + 320


# ---- stand-ins on real tensors -----------------------------------------------------------------------------

BATCH, WIDTH, LENGTH, STATE, RANK = 2, 8, CHUNK + 5, 4, 3


def leaf(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype, requires_grad=True)


def kept(function):
    """The output, and the bytes saved for backward, parameters aside."""
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function()
    return out, sum(
        t.untyped_storage().nbytes() for t in saved.values() if not (t.is_leaf and t.requires_grad)
    )


def test_a_convolution_keeps_its_input():
    x, weight, bias = leaf(BATCH, WIDTH, LENGTH), leaf(WIDTH, 4), leaf(WIDTH)
    out, bytes_ = kept(lambda: causal_conv1d_fn(x * 1, weight, bias, activation="silu"))
    assert out.shape == x.shape
    assert bytes_ == 2 * BATCH * WIDTH * LENGTH
    out.sum().backward()
    assert [t.grad.shape for t in (x, weight, bias)] == [x.shape, weight.shape, bias.shape]


@pytest.mark.parametrize("gated", [False, True])
def test_a_scan_keeps_its_operands_and_two_states_a_chunk(gated):
    u, delta, z = (leaf(BATCH, WIDTH, LENGTH) for _ in range(3))
    b, c = (leaf(BATCH, STATE, LENGTH) for _ in range(2))
    a, d, bias = (
        leaf(WIDTH, STATE, dtype=torch.float32),
        leaf(WIDTH, dtype=torch.float32),
        leaf(WIDTH, dtype=torch.float32),
    )
    out, bytes_ = kept(
        lambda: selective_scan_fn(
            u, delta, a, b, c, D=d, z=z if gated else None, delta_bias=bias, delta_softplus=True
        )
    )
    states = 4 * BATCH * WIDTH * 2 * 2 * STATE  # two chunks, two fp32 states each
    assert bytes_ == states + (2 * BATCH * WIDTH * LENGTH if gated else 0)
    out.sum().backward()
    used = (u, delta, a, b, c, d, bias, *((z,) if gated else ()))
    assert all(t.grad.shape == t.shape and t.grad.dtype == t.dtype for t in used)


def test_a_scan_gives_its_last_state_to_a_cache():
    u, b = leaf(BATCH, WIDTH, LENGTH), leaf(BATCH, STATE, LENGTH)
    out, state = selective_scan_fn(
        u, u, leaf(WIDTH, STATE, dtype=torch.float32), b, b, return_last_state=True
    )
    assert (out.shape, state.shape) == (u.shape, (BATCH, WIDTH, STATE))


def test_a_fused_layer_keeps_neither_its_convolution_nor_its_time_steps():
    xz = leaf(BATCH, LENGTH, 2 * WIDTH)
    conv, conv_bias = leaf(WIDTH, 1, 4), leaf(WIDTH)
    x_proj, dt_proj, out_proj = leaf(RANK + 2 * STATE, WIDTH), leaf(WIDTH, RANK), leaf(6, WIDTH)
    a, d, bias = (leaf(*shape, dtype=torch.float32) for shape in ((WIDTH, STATE), (WIDTH,), (WIDTH,)))
    weights = (conv, conv_bias, x_proj, dt_proj, out_proj, None, a, None, None, d)
    out, bytes_ = kept(
        lambda: mamba_inner_fn((xz * 1).transpose(1, 2), *weights, delta_bias=bias, delta_softplus=True)
    )
    tokens = BATCH * LENGTH
    halves, projected, out_kept = 2 * tokens * 2 * WIDTH, 2 * tokens * (RANK + 2 * STATE), 2 * tokens * WIDTH
    b_and_c, states = 2 * 2 * tokens * STATE, 4 * BATCH * WIDTH * 2 * 2 * STATE
    assert bytes_ == halves + projected + out_kept + b_and_c + states
    assert out.shape == (BATCH, LENGTH, 6)
    out.sum().backward()
    leaves = (xz, conv, conv_bias, x_proj, dt_proj, out_proj, a, d, bias)
    assert all(t.grad.shape == t.shape and t.grad.dtype == t.dtype for t in leaves)


def test_replacements_are_undone():
    modeling = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    before = modeling.mamba_inner_fn
    with stand_ins({"model_type": "mamba"}, "cuda"):
        assert modeling.mamba_inner_fn is not before
    assert modeling.mamba_inner_fn is before
