"""Sizes of an experiment by the name of its scale, and single ones changed."""

from dataclasses import dataclass

import pytest

from theta0.papers.furusho2020thesis import setting as furusho
from theta0.papers.kutsuna2019lcw import deep_mlp
from theta0.papers.lee2023mmd import setting as lee
from theta0.papers.scales import is_scale, scale_named
from theta0.papers.yang2022nio import setting as yang


@dataclass(frozen=True)
class Part:
    rate: float


@dataclass(frozen=True)
class Sizes:
    steps: int | None
    labels: tuple[int, ...]
    data: str
    augment: bool
    part: Part


SIZES = {"laptop": Sizes(10, (5, 20), "mnist", False, Part(0.1)), "paper": Sizes(None, (5,), "mnist", True, Part(0.1))}


def test_a_name_alone():
    for scales in (furusho.SCALES, deep_mlp.SCALES, lee.SCALES, yang.SCALES, {"laptop": 100}):
        for name, sizes in scales.items():
            assert scale_named(scales, name) is sizes


def test_single_sizes_are_changed():
    found = scale_named(SIZES, "laptop,steps=3,labels=(1, 2,),data=digits,augment=True,part.rate=1")
    assert found == Sizes(3, (1, 2), "digits", True, Part(1))
    assert scale_named(SIZES, "paper, steps=3") == Sizes(3, (5,), "mnist", True, Part(0.1))
    assert scale_named(SIZES, "laptop,steps=None").steps is None


def test_a_changed_scale_is_still_that_scale():
    assert is_scale("smoke,steps=3", "smoke")
    assert is_scale("smoke", "smoke")
    assert not is_scale("laptop,data=smoke", "smoke")


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        ("huge", "scale 'huge' is not known"),
        ("laptop,stepz=3", "there is no size 'stepz' here: this experiment has the sizes steps, labels"),
        ("laptop,part.speed=3", "no size 'speed'"),
        ("laptop,steps.more=3", "no size 'more'"),
        ("laptop,steps=many", "steps: expected a value like 10, got many"),
        ("laptop,steps=True", "steps: expected"),
        ("laptop,augment=1", "augment: expected"),
        ("laptop,labels=5", "labels: expected"),
        ("laptop,part=5", "part: expected"),
        ("laptop,steps", "scale 'laptop,steps'"),
    ],
)
def test_what_is_no_size(scale, words):
    with pytest.raises(ValueError, match=words):
        scale_named(SIZES, scale)


def test_an_experiment_with_one_size():
    with pytest.raises(ValueError, match="one size"):
        scale_named({"laptop": 100}, "laptop,steps=3")
