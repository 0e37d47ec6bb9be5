"""Indexers of sparse attention have buffers of their own beside the weights."""

import pytest

import memsheet

PICKS = 2048  # index_topk of deepseek-v3.2 and glm-5.1


def buffers_of(model: str, **asked: object) -> dict[str, tuple[int, int]]:
    sheet = memsheet.infer(model, engine="vllm", gpus="8xH200-141GB", fix=False, **asked).to_dict()
    items = [item for item in sheet["ranks"][0]["items"] if item["component"] == "buffers"]
    return {item["path"]: (item["low_bytes"], item["high_bytes"]) for item in items}


@pytest.mark.parametrize("model", ["deepseek-v3.2", "glm-5.1"])
@pytest.mark.parametrize("batch", [2048, 8192])
def test_a_batch_has_a_row_of_indices_for_each_token_once_for_all_layers(model: str, batch: int) -> None:
    held = buffers_of(model, max_batched_tokens=batch, max_model_len=4096)
    assert held["topk_indices"] == (4 * batch * PICKS,) * 2
    assert held["rotary_emb/indexer"] == (0, held["rotary_emb"][1])


def test_a_model_that_attends_to_everything_has_none() -> None:
    assert not {"topk_indices", "rotary_emb/indexer"} & {*buffers_of("deepseek-v3", max_model_len=4096)}
