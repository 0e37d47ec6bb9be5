"""Attention in plain operations as a trace runs it: under autocast too it keeps what torch's call keeps."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from memsheet.trace.attention import plain_attention_output  # noqa: E402


def kept(call):
    """Of one head of keys under a mask: (dtype, shape) of everything that backward needs of a call's own."""
    found = []

    def note(tensor):
        found.append((tensor.dtype, tuple(tensor.shape)))
        return tensor

    query = torch.zeros(1, 4, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    key = torch.zeros(1, 1, 16, 8, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.zeros(16, 16, dtype=torch.bfloat16)
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        out = call(query, key, mask)
    return out.dtype, found


def test_what_plain_attention_keeps_under_autocast_is_torchs_own():
    def real(query, key, mask):
        with sdpa_kernel(SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)

    def traced(query, key, mask):
        return plain_attention_output(query, key, key, mask, 0.0, False, None, False)

    assert kept(traced) == kept(real)
    assert (torch.float32, (1, 4, 16, 16)) in kept(traced)[1]
