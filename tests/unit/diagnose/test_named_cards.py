"""The card that a text names, against what is asked for where the message itself has no total."""

from __future__ import annotations

import pytest

from memsheet.catalog import devices_called
from memsheet.diagnose.message import Cause
from memsheet.diagnose.named_cards import card_in_text
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.units import GIB

PROGRAM = """BufferAssignment stats:
             parameter allocation:   9.91GiB
        maybe_live_out allocation:   9.91GiB
     preallocated temp allocation:  28.30GiB
                 total allocation:  38.21GiB
Peak buffers:
    Buffer 1:
        Size: 7.83GiB
        Operator: op_name="jit(step)/jit(main)/log_softmax" source_file="train.py" source_line=14
        XLA Label: fusion
        Shape: f32[8,2048,128256]"""


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ("One H100.", "H100"),
        ("8xH100s", "H100"),
        ("A100 40GB", "A100 40GB"),
        ("on my 3090", "RTX 3090"),
        ("2x4090", "RTX 4090"),
        ("two 4090s", "RTX 4090"),
        ("2x 3090 24GB", "RTX 3090"),
        ("(4090, jax 0.4.30)", "RTX 4090"),
        ("3090", "RTX 3090"),
        ("an L40S (48GB)", "L40S"),
        ("an A10G", "A10G"),
        ("TPU v4-8", "TPU v4"),
        ("a v5e chip", "TPU v5e"),
        ("fits on A100 80GB, not on the A100-40GB", "A100 80GB"),
    ],
)
def test_a_card_is_known_by_what_people_call_it(said: str, device: str) -> None:
    card = card_in_text(said)
    assert card is not None
    assert card.most == max(each.framework_high_bytes for each in devices_called(device))


@pytest.mark.parametrize(
    "said",
    [
        "/data/A100/run.log",
        "step 4090 loss 2.1",
        "org/L4-model",
        "A1000 steps",
        "on 4090 samples",
        "a 3090 token prompt",
    ],
)
def test_a_path_or_a_number_is_no_card(said: str) -> None:
    assert card_in_text(said) is None


def test_a_name_of_several_sizes_may_be_any_of_them() -> None:
    either, larger = card_in_text("an A100"), card_in_text("an A100 80GB")
    smaller = card_in_text("an A100-40GB")
    assert either is not None
    assert smaller is not None
    assert larger is not None
    assert {*smaller.sizes, *larger.sizes} <= set(either.sizes)
    assert smaller.most < larger.sizes[0]
    assert either.least_above(smaller.most) == smaller.most
    assert either.least_above(50 * GIB) == larger.sizes[0]
    assert either.least_above(larger.most + 1) == larger.most == either.most


def test_memory_is_heard_without_a_name() -> None:
    card = card_in_text("a 24 GB card")
    assert card is not None
    assert card.most == 24 * GIB


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("RTX 5090, batch 8", Cause.REAL_NEED),
        ("an A100, batch 8", Cause.UNKNOWN),  # which may be of 80 GB
        ("", Cause.UNKNOWN),
    ],
)
def test_a_program_larger_than_the_named_card_is_a_real_need(said: str, cause: Cause) -> None:
    found = found_in(
        said, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 30387000000 bytes.", PROGRAM
    )
    assert found.cause is cause
    assert found.term is not None
    assert found.term.shape == "[8, 2048, 128256] fp32"
    assert not found.term.exact


@pytest.mark.parametrize(
    "message",
    [
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 30387000000 bytes.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 28.30 GiB",
        pytest.param(
            "[E] [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)\n"
            "Requested amount of GPU memory (30387000000 bytes) could not be allocated.",
            id="TensorRT in two lines",
        ),
        "OutOfMemoryError: Out of memory allocating 30,387,000,000 bytes (allocated so far: 0 bytes).",
    ],
)
def test_one_request_larger_than_the_named_card_is_a_real_need(message: str) -> None:
    assert found_in("RTX 4090", message).cause is Cause.REAL_NEED
    assert found_in("A100-80GB", message).cause is Cause.UNKNOWN
    assert all(cure.helps != "yes" for cure in found_in("RTX 4090", message).cures)


def test_the_pool_of_jax_is_its_own_and_no_other_librarys() -> None:
    found = found_in("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.")
    assert "jax.checkpoint" in {cure.where for cure in found.cures}
