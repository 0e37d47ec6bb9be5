"""Operations of fake tensors that are looked up, against those that torch works out each time."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from memsheet.trace import dispatch_cache  # noqa: E402
from memsheet.trace.dispatch_cache import CachedFakeMode  # noqa: E402
from memsheet.trace.recorder import Recorder  # noqa: E402
from memsheet.trace.values import NEEDS_VALUES  # noqa: E402

DO = {
    "a product": torch.nn.functional.linear,
    "parts": lambda x, _: torch.cat([one * 2 for one in x.chunk(2, -1)], -1),
    "views of views": lambda x, _: x[1:].transpose(0, 2)[1:].unsqueeze(1),
    "a part in a list": lambda x, _: torch.broadcast_tensors(x, x[:1])[1],
    "in place": lambda x, _: x.add_(1).mul_(2),
    "several": lambda x, _: torch.nn.functional.layer_norm(x, (8,)).max(-1).indices,
    "another dtype": lambda x, _: x.to(torch.bfloat16).float(),
    "a complex one": lambda x, _: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 4, 2)).conj() * 2),
    "a shape in place": lambda x, _: x.clone().transpose_(0, 1),
    "of a scalar": lambda x, _: (x * 1, x.long() * 1, x.long() * 1.0)[2],
    "loss": lambda x, w: torch.nn.functional.cross_entropy(x @ w.T, torch.zeros(2, 8, dtype=torch.int64)),
}


def layouts(mode, do):
    """What a second turn allocates and returns, forward and backward."""
    with mode(allow_non_fake_inputs=True):
        for _ in range(2):
            with Recorder("cpu") as recorder:
                x = torch.empty(2, 3, 8)
                w = torch.empty(8, 8, requires_grad=True)
                out = do(x, w)
                shares = out.untyped_storage()._cdata == x.untyped_storage()._cdata
                found = (out.shape, out.stride(), out.storage_offset(), out.dtype, out.device, shares)
                if out.requires_grad:
                    out.float().sum().backward()
                    found += (w.grad.shape, w.grad.stride())
                del out, x, w
        return found, recorder.events, [(row.op, row.bytes) for row in recorder.rows], recorder.operations


@pytest.mark.parametrize("name", DO)
def test_what_is_looked_up_is_what_torch_works_out(name):
    assert layouts(CachedFakeMode, DO[name]) == layouts(FakeTensorMode, DO[name])


def test_what_was_seen_is_not_worked_out_again(monkeypatch):
    with CachedFakeMode():
        x = torch.empty(7, 11, 13)
        parts = x.split(3)
        monkeypatch.delattr(FakeTensorMode, "_dispatch_impl")
        again = x.split(3)
    assert [one.shape for one in again] == [one.shape for one in parts]
    assert {one.untyped_storage()._cdata for one in again} == {x.untyped_storage()._cdata}


def test_an_operation_that_torch_decomposes_is_worked_out_once(monkeypatch):
    """Its outputs come in a tuple with names."""
    with CachedFakeMode():
        x, w = torch.empty(7, 11, 13), torch.empty(13)
        once = torch.native_layer_norm(x, (13,), w, w, 1e-5)
        monkeypatch.delattr(FakeTensorMode, "_dispatch_impl")
        again = torch.native_layer_norm(x, (13,), w, w, 1e-5)
    assert [(one.shape, one.stride(), one.dtype) for one in again] == [
        (one.shape, one.stride(), one.dtype) for one in once
    ]


def test_a_look_up_finds_what_was_seen_and_nothing_else():
    with CachedFakeMode() as mode:
        x = torch.empty(7, 11, 17)
        add = torch.ops.aten.add.Tensor
        assert mode.look_up(add, (x, 3.5), {}) is dispatch_cache.UNSEEN
        once = x + 3.5
    found = mode.look_up(add, (x, 3.5), {})
    assert (found.shape, found.stride(), found.dtype, found.device) == (
        once.shape,
        once.stride(),
        once.dtype,
        once.device,
    )
    assert found.untyped_storage()._cdata not in {once.untyped_storage()._cdata, x.untyped_storage()._cdata}


def test_operands_of_other_values_and_types_are_told_apart():
    with CachedFakeMode():
        x = torch.empty(4, dtype=torch.int64)
        assert [(x * factor).dtype for factor in (2, 2.0, True)] == [torch.int64, torch.float32, torch.int64]
        assert [x.view(shape).shape for shape in ((4, 1), (2, 2))] == [(4, 1), (2, 2)]


def test_what_follows_values_is_refused_every_time():
    with CachedFakeMode():
        for _ in range(2):
            with pytest.raises(NEEDS_VALUES):
                torch.empty(4).nonzero()


def test_all_is_forgotten_when_there_is_much(monkeypatch):
    monkeypatch.setattr(dispatch_cache, "MOST", 3)
    with CachedFakeMode():
        for size in range(1, 9):
            torch.empty(size) + 1
            assert len(dispatch_cache._seen) <= 3


def test_a_pointer_may_be_asked_for_where_torch_allows_it():
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=True), CachedFakeMode():
        x = torch.empty(3, 5, 7)
        assert [x.clone().data_ptr() for _ in range(2)] == [0, 0]
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=False), CachedFakeMode():
        x = torch.empty(3, 5, 7)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="data pointer"):
                x.clone().data_ptr()
