"""Any text, any encoding: an answer, in linear time, and never a fault."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.diagnose.corpus import FULL_CARD, TEXTS, modern, traced

from laws import every
from memsheet.diagnose.cleaned import ALIKE, WHOLE, _first_places, cleaned_log, without_prefixes
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.log_messages import SIGNS
from memsheet.diagnose.message import Cause
from memsheet.diagnose.verdict import diagnose_texts


@pytest.mark.parametrize(
    ("number", "unit", "ends"),
    [
        ("14.00", "GiB", (15_027_016_827, 15_037_754_245)),
        ("2.00", "MiB", (2_091_910, 2_102_394)),
        ("512", "bytes", (512, 512)),
        ("0", "bytes", (0, 0)),
    ],
)
def test_a_printed_figure_is_an_interval(number: str, unit: str, ends: tuple[int, int]) -> None:
    assert printed_bytes(number, unit) == Interval(*ends)


def test_two_to_the_64_stands_for_none() -> None:
    assert printed_bytes("17179869184.00", "GiB") is None


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default0]:",
        "(EngineCore_DP0 pid=123) ERROR 03-03 19:38:29 [core.py:708] ",
        "(WorkerDict pid=123, ip=10.0.0.1) ",
        "\x1b[36m(TaskRunner pid=9)\x1b[0m ",
        "2026-01-02T03:04:05.678901Z stderr F ",
        "2026-01-02 03:04:05,678 ERROR ",
        "E       ",
        "[2026-01-02 03:04:05 TP0] ",
        "[1,2]<stderr>:",
        "W0303 19:38:29.123456 1234 site-packages/torch/x.py:9] ",
    ],
)
def test_what_launchers_put_in_front_is_taken_off(prefix: str) -> None:
    log = cleaned_log([f"{prefix}CUDA out of memory. Tried"], SIGNS)
    assert log.lines == ("CUDA out of memory. Tried",)


@pytest.mark.parametrize("host", ["worker-1: ", "10.0.0.2: [rank8]: ", "3: ", "trainer-1  | "])
def test_what_stands_before_every_line_of_a_traceback_is_taken_off(host: str) -> None:
    """A host's name, a task's number: known by the lines that it stands before."""
    lines = [*traced("training_step", "_unshard").split("\n"), "torch.OutOfMemoryError: CUDA out of memory."]
    log = cleaned_log(["\n".join(f"{host}{each}" for each in lines)], SIGNS)
    assert log.lines == tuple(each.strip() for each in lines)


def test_a_task_s_number_is_taken_off_where_most_lines_have_one() -> None:
    lines = ("CUDA out of memory.", "Tried to allocate", "3.00 GiB. GPU 2")
    assert cleaned_log(["\n".join(f"2: {each}" for each in lines)], SIGNS).lines == lines
    steps = ("1: load it", "2: train it", "3: CUDA out of memory")
    assert cleaned_log(["\n".join(steps)], SIGNS).lines == steps


@pytest.mark.parametrize("between", ["", "\n2: "])
def test_what_a_message_recommends_is_no_setting_however_it_is_wrapped(between: str) -> None:
    wrapped = FULL_CARD.replace("setting ", f"setting {between}").replace(" to avoid", f"{between} to avoid")
    offered = {cure.change: cure.why for cure in diagnose_texts({"log": wrapped}).cures}
    assert "on already" not in offered["expandable segments"]


@pytest.mark.parametrize("unit", ["GiB", "gib", "GB", "gb"])
def test_units_in_letters_of_either_case_are_read(unit: str) -> None:
    assert diagnose_texts({"log": f"step 1 allocated 12.3 {unit}\n{FULL_CARD}"}).found
    assert printed_bytes("12.3", unit) == printed_bytes("12.3", "GiB")


def test_a_word_before_one_traceback_is_no_host() -> None:
    text = "note: Traceback (most recent call last):\nnote: File is missing"
    assert cleaned_log([text], SIGNS).lines[1] == "note: File is missing"


def test_a_box_is_taken_off() -> None:
    assert without_prefixes("│ OutOfMemoryError: CUDA │") == "OutOfMemoryError: CUDA"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "latin-1"])
def test_any_encoding(encoding: str) -> None:
    found = diagnose_texts({"log": f"déjà vu\n{FULL_CARD}".encode(encoding)})
    assert found.cause is Cause.REAL_NEED


@pytest.mark.parametrize("width", [40, 79, 120])
def test_wrapped_at_any_width(width: int) -> None:
    wrapped = "\n".join(FULL_CARD[at : at + width] for at in range(0, len(FULL_CARD), width))
    assert diagnose_texts({"log": wrapped}).cause is Cause.REAL_NEED


def test_of_a_long_log_what_matters_is_found() -> None:
    noise = b"step 1 loss 2.345 lr 0.0001 tokens 123456\n" * (4 * WHOLE // 42)
    found = diagnose_texts({"log": noise + FULL_CARD.encode() + b"\n" + noise})
    assert found.cause is Cause.REAL_NEED


def test_of_lines_that_differ_by_their_digits_the_first_and_the_last_are_read_for_settings() -> None:
    steps = [
        f"step {number} {'#' * (number // 400):<25}| loss {1 / number:.2e} request {number * 7919:x}"
        for number in range(1, 10_001)
    ]
    log = cleaned_log(["\n".join(("seq_len: 4096", *steps[:5_000], "batch: 8", *steps[5_000:]))], SIGNS)
    kept = log.text.split("\n")
    assert {"seq_len: 4096", steps[0], "batch: 8", steps[-1]} <= set(kept)
    assert kept == [line for line in log.lines if line in set(kept)]
    assert len(kept) <= 2 * ALIKE + 2
    assert len(log.lines) == 10_002


@every("seed", range(40))
def test_random_bytes_are_no_fault(seed: int) -> None:
    draw = random.Random(seed)
    found = diagnose_texts({"log": draw.randbytes(draw.randint(1, 4000))})
    assert not found.undecided


@every("seed", range(60))
def test_broken_messages_are_no_fault(seed: int) -> None:
    draw = random.Random(seed)
    raw = bytearray(draw.choice(TEXTS).text.encode())
    for _ in range(draw.randint(1, 12)):
        at = draw.randrange(len(raw))
        match draw.randrange(3):
            case 0:
                raw[at] = draw.randrange(256)
            case 1:
                del raw[at : at + draw.randint(1, 30)]
            case _:
                raw[at:at] = draw.choice(TEXTS).text.encode()[: draw.randint(1, 200)]
        raw = raw or bytearray(b"x")
    found = diagnose_texts({"log": bytes(raw)})
    assert all(size.low <= size.high for size in found.facts.values())


@pytest.mark.parametrize(
    "text",
    ["RESOURCE_EXHAUSTED:" * 20_000, "Tried to allocate " * 20_000, "CUDA out of memory." * 20_000, "(" * 500_000, "\\n" * 200_000,
     "1" * 900_000, "Process 1 has 1.00 GiB memory in use." * 10_000, "memory_saver" * 50_000, "[rank0]:" * 60_000,
     "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB (rounded to 1098907648)requested by op X\n" * 9_000,
     "allocated:\nepoch 1: 2 GiB\n" * 40_000 + FULL_CARD],
    ids=range(11),
)  # fmt: skip
def test_repeated_signs_take_no_time(text: str) -> None:
    diagnose_texts({"log": text})


def test_several_texts_are_of_one_job() -> None:
    table = "| NVIDIA-SMI 550.54 |\n| 30%  40C  P2  300W / 350W |  20000MiB /  24576MiB |"
    found = diagnose_texts({"train.log": FULL_CARD, "smi.txt": table})
    assert found.cause is Cause.REAL_NEED
    assert found.inputs == ("train.log", "smi.txt")
    assert "card_used_bytes" in found.facts


LIMITED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "38.00 GiB is free. Including non-PyTorch memory, this process has 40.90 GiB memory in use. 39.55 GiB allowed; Of the "
    "allocated memory 38.50 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)  # fmt: skip


@pytest.mark.parametrize("first", [20, 21, 22])
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            modern("8.00 GiB", "79.11 GiB", "1.10 GiB", "78.00 GiB", "50.00 GiB", "26.00 GiB"),
            Cause.FRAGMENTATION,
        ),
        (modern("8.00 GiB", "79.11 GiB", "1.10 GiB", "78.00 GiB", "74.00 GiB", "2.10 GiB"), Cause.REAL_NEED),
        (LIMITED, Cause.LIMIT_SET),
    ],
)
def test_a_message_that_is_cut_is_never_sure_of_another_cause(text: str, cause: Cause, first: int) -> None:
    assert diagnose_texts({"a": text}).cause is cause
    for end in range(first, len(text), 3):
        assert diagnose_texts({"a": text[:end]}).cause in (cause, Cause.UNKNOWN), text[:end]


DEAD = modern("8.00 GiB", "79.11 GiB", "1.10 GiB", "78.00 GiB", "74.00 GiB", "2.10 GiB")


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("WARNING OOM caught, skipping batch: ", "step 11 loss 2.1\nstep 12 loss 2.0\n", False),
        ("Batch size 64 failed: ", "Decreasing batch size to: 32.\n{'train_runtime': 100.0}\n", False),
        (
            "torch.OutOfMemoryError: ",
            "skipping\nstep 11 loss 2.1\nstep 12 loss 2.0\n",
            True,
        ),  # of another rank
        ("torch.OutOfMemoryError: ", "Decreasing batch size to: 8.\n{'loss': 1.9, 'epoch': 0.02}\n", False),
        ("torch.OutOfMemoryError: ", "Decreasing batch size to: 8.\n", True),
        ("WARNING OOM caught, skipping batch: ", "", True),
        ("", "step 11 loss 2.1\nstep 12 loss 2.0\n", True),  # nobody says that it is handled
    ],
)
def test_a_failure_that_is_handled_is_no_death(before: str, after: str, found: bool) -> None:
    text = DEAD.removeprefix("torch.OutOfMemoryError: ")
    assert diagnose_texts({"a": f"step 10 loss 2.2\n{before}{text}\n{after}"}).found is found


def test_cards_that_failed_of_their_own_are_told_in_any_order() -> None:
    one = modern("8.00 GiB", "79.11 GiB", "1.10 GiB", "78.00 GiB", "50.00 GiB", "26.00 GiB").replace(
        "GPU 0", "GPU 1"
    )
    found = [diagnose_texts({"a": first, "b": second}) for first, second in ((one, DEAD), (DEAD, one))]
    assert {each.cause for each in found} == {Cause.REAL_NEED}
    assert all("card 1 failed of its own: fragmentation" in " ".join(each.notes) for each in found)


@pytest.mark.parametrize(
    ("allocated", "kept", "helps"), [("30.00", "9.00", "maybe"), ("38.50", "0.50", "no")]
)
def test_pieces_below_a_limit_may_be_joined(allocated: str, kept: str, helps: str) -> None:
    text = modern(
        "2.00 GiB",
        "79.11 GiB",
        "38.00 GiB",
        "40.90 GiB",
        f"{allocated} GiB",
        f"{kept} GiB",
        allowed="39.55 GiB",
    )
    found = diagnose_texts({"a": text})
    assert found.cause is Cause.LIMIT_SET
    assert {cure.change: cure.helps for cure in found.cures}["expandable segments"] == helps


def test_a_model_s_hub_id_names_its_vocabulary_and_heads() -> None:
    loss = traced("ForCausalLMLoss", module="x.py") + modern(
        "3.91 GiB", "79.15 GiB", "2.10 GiB", "77.04 GiB", "74.90 GiB", "1.50 GiB"
    )
    for name in (
        "meta-llama/Llama-3.1-8B",
        "/hub/models--meta-llama--Llama-3.1-8B/snapshots/d04e/config.json",
    ):
        found = diagnose_texts({"a": f"{name}\n{loss}"})
        assert found.term is not None
        assert found.term.shape == "[8192, 128256] fp32"
    assert diagnose_texts({"a": loss}).term.shape == ""  # type: ignore[union-attr]
    scores = "model=mistralai/Mistral-7B-v0.1 batch_size=4 seq_len=4096\n" + traced(
        "eager_attention_forward", module="x.py"
    )
    found = diagnose_texts(
        {"a": scores + modern("8.00 GiB", "79.15 GiB", "5.00 GiB", "74.14 GiB", "72.90 GiB", "600.00 MiB")}
    )
    assert found.term is not None
    assert found.term.shape == "[4, 32, 4096, 4096] fp32"


def test_tokens_of_a_pass_that_a_trainer_is_told_are_tried() -> None:
    said = 'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384\n"vocab_size": 152064,\n'
    found = diagnose_texts(
        {"a": said + modern("9.28 GiB", "79.11 GiB", "6.10 GiB", "73.01 GiB", "69.40 GiB", "2.50 GiB")}
    )
    assert found.term is not None
    assert found.term.shape == "[16384, 152064] fp32"
    assert any("ppo_max_token_len_per_gpu" in cure.where for cure in found.cures)


def test_figures_of_other_runtimes_are_facts_and_close() -> None:
    pool = "Stats:\nLimit: 22740598784\nInUse: {}\n"
    tensor = (
        "ResourceExhaustedError: OOM when allocating tensor with shape[32768,30522] and type float "
        "on /device:GPU:0 by allocator GPU_0_bfc"
    )
    found = diagnose_texts({"a": pool.format(21300000000) + tensor})
    assert found.cause is Cause.REAL_NEED
    assert found.term is not None
    assert found.facts["asked_bytes"].low == 32768 * 30522 * 4
    assert found.missing is not None
    assert found.missing.low == 32768 * 30522 * 4 - (22740598784 - 21300000000)
    assert "contradict" in diagnose_texts({"a": pool.format(23300000000) + tensor}).because
    cupy = (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated "
        "so far: {} bytes, limit set to: 10,737,418,240 bytes)."
    )
    limited = diagnose_texts({"a": cupy.format("4,294,967,296")})
    assert [limited.facts[f"{name}_bytes"].low for name in ("asked", "allocated", "allowed")] == [
        2**33,
        2**32,
        10 * 2**30,
    ]
    assert "contradict" in diagnose_texts({"a": cupy.format("14,294,967,296")}).because
    llama = (
        "allocating 38512.22 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: "
        "failed to allocate CUDA0 buffer of size 40382988288\n"
    )
    buffer = diagnose_texts({"a": llama}).term
    assert buffer is not None
    assert buffer.shape == "40,382,988,288 bytes"


@given(
    st.lists(st.binary(min_size=1, max_size=9).map(lambda one: bytes(65 + byte % 4 for byte in one)), min_size=1, max_size=12),
    st.binary(max_size=400).map(lambda one: bytes(65 + byte % 5 for byte in one)),
)  # fmt: skip
def test_signs_stand_first_where_each_alone_is_found(signs: list[bytes], raw: bytes) -> None:
    for text in (raw + b"".join(signs[::2]), (raw + signs[0]) * 9):
        alone = sorted(place for sign in dict.fromkeys(signs) if (place := text.find(sign)) >= 0)
        assert sorted(_first_places(text, tuple(signs * 2))) == alone


def test_a_page_s_source_and_empty_lines_change_no_verdict() -> None:
    plain = diagnose_texts({"a": FULL_CARD})
    for text in (FULL_CARD.replace(" GiB", "&nbsp;GiB"), "\n" * 5_000 + FULL_CARD + "\n" * 5_000):
        found = diagnose_texts({"a": text})
        assert (found.cause, found.facts) == (plain.cause, plain.facts)


def test_a_message_that_says_less_counts_once_beside_one_that_says_more() -> None:
    """However many are cut short, the one with its figures decides, and each that stands alone is an echo."""
    cut = "CUDA out of memory. Tried\n"
    assert diagnose_texts({"a": cut * 500 + FULL_CARD}).cause is diagnose_texts({"a": FULL_CARD}).cause


@pytest.mark.parametrize("behind", ["10:20:01 server stopped", "172.18.0.1:51544 - POST", "0.00.381.412 E common", "2025-11-02 x"])  # fmt: skip
def test_what_the_next_line_begins_with_is_no_end_of_a_figure(behind: str) -> None:
    text = f"alloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184\n{behind}"
    assert diagnose_texts({"log": text}).facts["asked_bytes"].high == 17179869184
