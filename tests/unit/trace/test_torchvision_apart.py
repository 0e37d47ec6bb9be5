"""torchvision of another torch build beside this one: model code runs without it, and what needs it imports
it.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

BROKEN = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold): ...

@torch.library.register_fake("torchvision::qnms")
def qnms(dets, scores, iou_threshold): ...
"""
ASKED = """
import sys
from memsheet.trace.torchvision_apart import keep_torchvision_apart
keep_torchvision_apart()
keep_torchvision_apart()
from transformers import AutoConfig, LlamaForCausalLM, image_utils
AutoConfig.for_model("llama")
print("torchvision" in sys.modules)
import torchvision
print(torchvision.nms.__name__)
"""


@pytest.mark.slow
def test_a_torchvision_without_operators_is_in_nobodys_way(tmp_path):
    home = tmp_path / "torchvision"
    home.mkdir()
    (home / "__init__.py").write_text(BROKEN)
    said = {**os.environ, "PYTHONPATH": str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", ASKED], env=said, capture_output=True, text=True, check=False, timeout=300
    )
    assert made.stdout.split() == ["False", "nms"], made.stderr[-2000:]
