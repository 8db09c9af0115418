"""Values are as the dataclasses that they are, without the methods of each."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

import sepp_trio
from sepp_trio.types import DeadLetterCause, DeadLetterRecord, EnqueueRequest, Payload, QueueFull
from sepp_trio.types._value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ours(Value):
    a: int
    b: object = None
    unhashed: dict[str, int] = field(default_factory=dict, hash=False)
    unequal: int = field(default=0, compare=False)
    unseen: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: object = None
    unhashed: dict[str, int] = field(default_factory=dict, hash=False)
    unequal: int = field(default=0, compare=False)
    unseen: int = field(default=0, repr=False)


ARGUMENTS = [(1,), (1, "x"), (2,), (1, None, {"k": 1}), (1, None, {}, 5), (1, None, {}, 5, 6)]
NAN = float("nan")


@pytest.mark.parametrize("first", ARGUMENTS)
@pytest.mark.parametrize("second", ARGUMENTS)
def test_equality_hash_and_repr_are_those_of_a_dataclass(first, second) -> None:  # type: ignore[no-untyped-def]
    assert (Ours(*first) == Ours(*second)) is (Theirs(*first) == Theirs(*second))
    assert hash(Ours(*first)) == hash(Theirs(*first))
    assert repr(Ours(*first)) == repr(Theirs(*first)).replace("Theirs", "Ours")


def test_values_of_different_classes_are_different() -> None:
    class More(Ours):
        __slots__ = ()

    assert Ours(1) != More(1)
    assert Ours(1) != (1, None, {}, 0, 0)
    assert Ours(1) == Ours(1)
    assert Ours(1, NAN) == Ours(1, NAN)


def test_public_values_can_be_replaced_copied_and_pickled() -> None:
    values = [
        EnqueueRequest("q", "t", Payload(b"x", "e"), custom={"k": 1}, priority=3),
        DeadLetterRecord(
            *("id", "q", "t", None, 1, 2, datetime.now(UTC)),
            *(DeadLetterCause.REJECTED, datetime.now(UTC), 1),
        ),
        QueueFull("q", 5),
    ]
    for value in values:
        for same in (copy.copy(value), copy.deepcopy(value), dataclasses.replace(value)):  # type: ignore[type-var]
            assert same == value
            assert hash(same) == hash(value)
        assert pickle.loads(pickle.dumps(value)) == value
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.queue = "other"  # type: ignore[misc]
    assert dataclasses.replace(values[0], priority=4) != values[0]  # type: ignore[type-var]


def test_every_public_dataclass_is_compared_by_value() -> None:
    public = [value for name, value in inspect.getmembers(sepp_trio) if inspect.isclass(value)]
    found = [cls for cls in public if dataclasses.is_dataclass(cls)]
    assert len(found) > 20
    for cls in found:
        assert cls.__eq__ is not object.__eq__, cls
        assert cls.__repr__ is not object.__repr__, cls
