"""What lets go of what grows, by what a text shows that it is; and what an answer asks for that has too few
figures.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern

from memsheet.diagnose.cures.choice import without_growth
from memsheet.diagnose.cures.tables import KEEP_NO_CHAT, KEEP_NOTHING, KEEP_ON_LIST
from memsheet.diagnose.message import Cause
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.verdict import diagnose_texts

CHATS = (
    "out = model.generate(**ids, past_key_values=self.chats[user], max_new_tokens=64)", "cache = store.get(sid); model(ids, past_key_values=store.get(sid))",
    "conversations[conv_id] = out.past_key_values", "we keep one cache per user, each user's cache stays in a map", 'sessions["a1"].kv',
)  # fmt: skip
LISTS = (
    "I save every step's reward and kl in a list and plot it", "the losses are appended to a python list", "logged per-token stats are pushed onto a deque",
    "ich sammle die Werte jedes Schritts in einer Liste", "guardo los valores de cada paso en una lista", "j'ajoute chaque score dans une liste", "salvo i valori in una lista",
    "сохраняю значения каждого шага в список", "每步的 reward 存到列表里", "各ステップの値をリストに追加している", "매 스텝 값을 리스트에 저장합니다", "her adımda değeri listeye ekliyorum",
)  # fmt: skip


@pytest.mark.parametrize("text", CHATS)
def test_caches_of_sessions_are_let_go(text: str) -> None:
    assert without_growth(Signs(text=text)) is KEEP_NO_CHAT


@pytest.mark.parametrize("text", LISTS)
def test_what_goes_on_a_list_goes_there_as_numbers(text: str) -> None:
    assert without_growth(Signs(text=text)) is KEEP_ON_LIST


@pytest.mark.parametrize(
    "text", ["step 4: allocated 3 GB", "max_num_seqs=8, list of models: a, b", "users=8"]
)
def test_where_nothing_says_what_it_is_nothing_is_said(text: str) -> None:
    assert without_growth(Signs(text=text)) is KEEP_NOTHING


@pytest.mark.parametrize("text", [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a to", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.",
    "RuntimeError: CUDA out of memory", "  what():  CUDA out of memory", "RuntimeError: HIP out of memory. Tried to allocate 20.00 MiB",
])  # fmt: skip
def test_an_answer_without_figures_says_which_would_tell(text: str) -> None:
    found = diagnose_texts({"log": text})
    assert found.undecided
    assert "the whole message" in found.cures[0].change
    assert "the whole message" not in str(diagnose_texts({"log": FULL_CARD}).cures)


def of_xla(operator: str) -> str:
    return (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.\nBufferAssignment stats:\n  preallocated temp allocation:   32.00GiB\n"
        f'Peak buffers:\n Buffer 1:\n  Size: 16.00GiB\n  Operator: op_name="jit(step)/{operator}" source_file="m.py" source_line=3\n  Shape: f32[16,2048,131072]\n'
    )  # fmt: skip


@pytest.mark.parametrize("operator", [
    "jvp(Model)/embedder.decode/dot_general", "decoder/token_embed.attend/dot_general", "jvp(M)/lm_head/dot_general", "loss/log_softmax/sub", "softmax_cross_entropy/reduce", "unembed/einsum",
])  # fmt: skip
def test_a_buffer_that_logits_are_has_a_loss_in_pieces(operator: str) -> None:
    found = diagnose_texts({"log": of_xla(operator)})
    assert found.term
    assert "logits" in found.term.words
    assert "num_vocab_tiling" in found.cures[0].where


@pytest.mark.parametrize(
    "operator", ["layers/mlp/dot_general", "layers/attention/softmax", "embedder.encode/gather"]
)
def test_a_buffer_of_anything_else_has_none(operator: str) -> None:
    assert "num_vocab_tiling" not in str(diagnose_texts({"log": of_xla(operator)}).cures)


@pytest.mark.parametrize("call", [
    "cudaMalloc failed: out of memory", "cudaMallocAsync(&ptr, n, stream) failed: out of memory", "cudaMalloc(reinterpret_cast<void**>(&p), size): out of memory", "cudaMalloc error: out of memory",
])  # fmt: skip
@pytest.mark.parametrize(
    ("server", "cause"),
    [("trtllm-serve m --kv_cache_free_gpu_memory_fraction=0.95", Cause.ENGINE_OVERCOMMIT), ("", Cause.OTHER_PROCESS)],
)  # fmt: skip
def test_a_programs_own_call_to_the_driver_is_told_of_the_program(
    call: str, server: str, cause: Cause
) -> None:
    found = diagnose_texts({"log": f"{server}\nRuntimeError: {call}"})
    assert cause in found.open_between
    assert any("0.9" in cure.where for cure in found.cures)


@pytest.mark.parametrize("said", [
    "every new user adds to self.history[user] = out.past_key_values. after ~40 users it dies", "each turn: self.store[sid] = outputs.past_key_values. Gone after about 200 sessions",
    "we write into memo[key] = model.encode(x); dies after 3000 calls",
])  # fmt: skip
def test_what_a_sentence_writes_down_as_code_is_kept(said: str) -> None:
    message = modern("20.00 MiB", "21.96 GiB", "11.12 MiB", "21.94 GiB", "21.50 GiB", "90.00 MiB")
    assert diagnose_texts({"log": f"{said}\n{message}"}).cause is Cause.LEAK
    assert diagnose_texts({"log": message}).cause is Cause.REAL_NEED
