"""One stream per name, whatever the order; the global generator stays where it is."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from theta0._randomness import streams


def draw(stream, name):
    return torch.rand(3, generator=stream(name)).tolist()


@given(st.integers(0, 2**40), st.permutations(["a.weight", "b.weight", "c.bias"]))
def test_streams_do_not_depend_on_the_order(seed, names):
    stream, again = streams(seed), streams(seed)
    assert {name: draw(stream, name) for name in names} == {name: draw(again, name) for name in sorted(names)}
    assert len({tuple(draw(stream, name)) for name in names}) == 3


def test_seeds_differ():
    assert draw(streams(0), "w") != draw(streams(1), "w")


def test_a_generator_is_advanced_once_and_repeats():
    first, second = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    before = first.get_state()
    assert draw(streams(first), "w") == draw(streams(second), "w")
    assert not torch.equal(first.get_state(), before)
    assert torch.equal(first.get_state(), second.get_state())
    assert draw(streams(first), "w") != draw(streams(torch.Generator().manual_seed(3)), "w")


def test_none_follows_manual_seed_and_leaves_the_global_generator():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = torch.get_rng_state()
        found = draw(streams(None), "w")
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(7)
        assert draw(streams(None), "w") == found
        torch.manual_seed(6)
        assert draw(streams(None), "w") != found
