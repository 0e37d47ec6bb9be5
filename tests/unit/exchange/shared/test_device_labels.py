"""Cards that files name, by labels of nodes and words of services."""

from __future__ import annotations

import pytest

from memsheet.exchange.shared.device_labels import card_called, named_card

TEXTS = (
    ("nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-L40S\n", "L40S", None),
    ("nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-L40S-SHARED\n", "L40S", None),
    ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}\n", "H200", None),
    ("nodeSelector: {a: b, node.kubernetes.io/instance-type: p5.48xlarge, c: d}\n", "H100-80GB", 8),
    ("nodeSelector:\n  cloud.google.com/gke-accelerator: nvidia-l4  # one\n", "L4", None),
    ('nodeSelector: \n  "node.kubernetes.io/instance-type": "g5.12xlarge"\n', "A10G", 4),
    ("- key: nvidia.com/gpu.product\n  operator: In\n  values:\n  - NVIDIA-A100-SXM4-80GB\n", "A100-80GB", None),
    ("- key: cloud.google.com/gke-accelerator\n  operator: In\n  values: [nvidia-h100-mega-80gb]\n", "H100-80GB", None),
    ('@bentoml.service(resources={"gpu": 1, "gpu_type": "nvidia-a100-80gb"})\n', "A100-80GB", None),
    ('@app.function(image=image, gpu=f"H100:{N}", timeout=60)\n', "H100-80GB", None),
    ("    accelerator_type: A10G\n", "A10G", None),
    ("resources:\n  accelerators: {L40S: 4}\n", "L40S", None),
    ("#SBATCH --gres=gpu:h200:8\n", "H200", None),
)  # fmt: skip


@pytest.mark.parametrize(("text", "card", "each"), TEXTS)
def test_a_file_names_its_card(text: str, card: str, each: int | None) -> None:
    found = named_card([text])
    assert found is not None
    assert (found.card, found.each) == (card, each)


@pytest.mark.parametrize(
    "text",
    [
        "nodeSelector:\n  nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB-MIG-1g.10gb\n",
        "nodeSelector:\n  accelerator: nvidia\n",
        "a:\n  nvidia.com/gpu.product: NVIDIA-L4\nb:\n  nvidia.com/gpu.product: NVIDIA-L40S\n",
        "nodeAffinity:\n- key: nvidia.com/gpu.product\n  operator: NotIn\n  values: [NVIDIA-L4]\n",
        "limits:\n  nvidia.com/gpu: 8\n",
    ],
)
def test_parts_of_cards_and_several_of_them_name_none(text: str) -> None:
    assert named_card([text]) is None


def test_a_name_of_several_sizes_stays_one() -> None:
    found = card_called("A100")
    assert found is not None
    assert found.card == "A100"
