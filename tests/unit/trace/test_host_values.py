"""Values that are known on the host, followed through fake tensors."""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from memsheet.trace.values import FEW, MANY, NEEDS_VALUES, HostValues, with_values_if_asked  # noqa: E402


@pytest.fixture(params=[FEW, MANY])
def followed(request):
    with FakeTensorMode(allow_non_fake_inputs=True), HostValues(request.param):
        yield


ASKED = {
    "a length": (lambda: torch.full((3,), 7).sum().item(), 21),
    "a list": (lambda: torch.arange(4).cumsum(0).tolist(), [0, 1, 3, 6]),
    "a truth": (lambda: bool((torch.ones(4, dtype=torch.bool)).all()), True),
    "a write through a view": (lambda: _written(torch.zeros(4, dtype=torch.int64)), 5),
    "where": (lambda: tuple(torch.tensor([0, 1, 1]).nonzero().shape), (2, 1)),
    "a mask": (lambda: tuple(torch.empty(3, 8)[torch.tensor([True, False, True])].shape), (2, 8)),
    "a schedule": (lambda: [round(x.item(), 2) for x in torch.linspace(0, 1, 3)], [0.0, 0.5, 1.0]),
}


def _written(ids):
    ids.view(2, 2)[1, 1] = 5
    return ids.max().item()


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("name", ASKED)
def test_what_code_asks_is_what_a_real_tensor_says(name):
    ask, said = ASKED[name]
    assert ask() == said


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize(("rows", "experts", "each"), [(8, 4, 1), (8, 4, 2), (6, 3, 2), (16, 8, 3)])
def test_every_expert_gets_as_many_tokens_as_every_other(rows, experts, each):
    chosen = torch.empty(rows, experts).topk(each, dim=-1).indices
    counts = torch.nn.functional.one_hot(chosen, experts).sum((0, 1)).tolist()
    assert counts == [rows * each // experts] * experts


def _half_of_what_is_overwritten():
    ones = torch.ones(4)
    half = ones[:2]
    ones.copy_(torch.empty(4))
    return half.sum().item()


UNKNOWN = {
    "a weight": lambda: torch.empty(3).sum().item(),
    "made of a weight": lambda: (torch.ones(3) * torch.empty(3)).sum().item(),
    "overwritten by a weight": lambda: torch.ones(3).copy_(torch.empty(3)).sum().item(),
    "overwritten beneath a view": _half_of_what_is_overwritten,
    "places of a weight": lambda: torch.empty(3).nonzero(),
}


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_is_not_made_up(name):
    with pytest.raises(NEEDS_VALUES):
        UNKNOWN[name]()


def test_values_are_followed_as_far_as_the_code_asks():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class How:
        values: int = 0

    tried = []

    def run(how):
        tried.append(how.values)
        with FakeTensorMode(allow_non_fake_inputs=True), HostValues(how.values):
            return torch.ones(FEW + 1).sum().item()

    assert with_values_if_asked(run, How()) == FEW + 1
    assert tried == [0, FEW, MANY]
    with pytest.raises(NEEDS_VALUES):
        with_values_if_asked(run, How(), FEW)
