"""Which samples a step trained on, over restarts with other global batches: as a walk over all steps has it."""

import pytest

from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.train.trace.history import History, Leg, read_legs, with_leg


def walked(legs: list[Leg], samples: int | None, steps: int) -> list[tuple[int, range]]:
    """The epoch and samples of each step, one after the other."""
    found = []
    epoch = position = size = 0
    for step in range(1, steps + 1):
        for leg in legs:
            if leg.step == step - 1:
                epoch, position, size = leg.epoch, leg.position, leg.global_batch_size
        if samples is not None and position + size > samples:
            epoch, position = epoch + 1, 0
        found.append((epoch, range(position, position + size)))
        position += size
    return found


JOBS = [
    ([Leg(0, 0, 0, 8)], 100),
    ([Leg(0, 0, 0, 8)], None),
    ([Leg(0, 0, 0, 8), Leg(5, 0, 40, 12)], 100),
    ([Leg(0, 0, 0, 8), Leg(12, 0, 96, 4), Leg(13, 0, 100, 50)], 100),
    ([Leg(0, 0, 0, 8), Leg(30, 2, 48, 20)], 100),
    ([Leg(0, 0, 0, 7), Leg(10, 0, 70, 3), Leg(20, 0, 100, 11)], None),
    ([Leg(4, 1, 12, 4)], 40),
]


@pytest.mark.parametrize(("legs", "samples"), JOBS)
def test_steps_have_the_samples_of_a_walk_and_samples_their_steps(legs: list[Leg], samples: int | None) -> None:
    history = History(tuple(legs), samples)
    expected = walked(legs, samples, 60)
    for step in range(legs[0].step + 1, 61):
        epoch, trained = expected[step - 1]
        assert history.samples_of(step) == (epoch, trained)
        for sample in trained:
            assert history.step_of(epoch, sample) == step


def test_samples_at_the_end_of_an_epoch_have_no_step() -> None:
    history = History((Leg(0, 0, 0, 8),), 100)
    assert [history.step_of(0, sample) for sample in (95, 96, 99)] == [12, None, None]
    assert history.step_of(3, 0) == 37


@pytest.mark.parametrize("step", [0, -3])
def test_a_step_that_is_none_is_refused(step: int) -> None:
    with pytest.raises(SettingError, match=f"step: {step}, needed: 1 or more"):
        History((Leg(0, 0, 0, 8),), 100).samples_of(step)


def test_a_start_with_the_same_batch_adds_no_leg_and_another_one_supersedes_what_lies_behind_it() -> None:
    first = Leg(0, 0, 0, 8)
    assert with_leg((), first) == (first,)
    assert with_leg((first,), Leg(5, 0, 40, 8)) == (first,)
    other = Leg(5, 0, 40, 16)
    assert with_leg((first,), other) == (first, other)
    assert with_leg((first, other), Leg(3, 0, 24, 4)) == (first, Leg(3, 0, 24, 4))
    assert with_leg((first, other), Leg(0, 0, 0, 2)) == (Leg(0, 0, 0, 2),)


def test_a_checkpoint_of_0_1_0_had_one_batch_size() -> None:
    assert read_legs({"step": 3, "consumed": 24}) == (Leg(0, 0, 0, 8),)
    assert read_legs({"history": [{"step": 2, "epoch": 1, "position": 4, "global_batch_size": 2}]}) == (
        Leg(2, 1, 4, 2),
    )
    with pytest.raises(SetError, match="25 samples in 3 steps"):
        read_legs({"step": 3, "consumed": 25})
    with pytest.raises(SetError, match="it is damaged"):
        read_legs({"history": [{"steps": 2}]})
