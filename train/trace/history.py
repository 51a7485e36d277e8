"""Which samples an optimizer step trained on, over all restarts of a job: pure arithmetic.

Steps are numbered as in Trainer's log: step 1 is the first. A job is made of legs, each begun by a start of training with
its own global batch size; a leg ends where the next one begins.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokentar.shard_writer.errors import SetError, SettingError


@dataclass(frozen=True)
class Leg:
    """What was done before the first step of a leg, and the sequences of each of its steps."""

    step: int  # steps of the job
    epoch: int
    position: int  # samples of that epoch or, in an order without end, of the job
    global_batch_size: int

    def to_json(self) -> dict[str, int]:
        """As a checkpoint has it."""
        return asdict(self)


@dataclass(frozen=True)
class History:
    """The legs of a job. samples: of an epoch in whole rounds, None for an order without end."""

    legs: tuple[Leg, ...]
    samples: int | None

    def samples_of(self, step: int) -> tuple[int, range]:
        """The epoch and the samples of a step. Raises SettingError for a step that is none."""
        if step < 1:
            raise SettingError(f"step: {step}, needed: 1 or more, as in the log of training")
        leg = next(leg for leg in reversed(self.legs) if leg.step < step)
        size, number = leg.global_batch_size, step - 1 - leg.step
        epoch, first = leg.epoch, leg.position + number * size
        if self.samples is not None and number >= (rest := self._rest(leg)):
            epochs, number = divmod(number - rest, self.samples // size)
            epoch, first = leg.epoch + 1 + epochs, number * size
        return epoch, range(first, first + size)

    def _rest(self, leg: Leg) -> int:
        """Steps of the epoch in which a leg begins."""
        assert self.samples is not None
        return (self.samples - leg.position) // leg.global_batch_size

    def step_of(self, epoch: int, sample: int) -> int | None:
        """The step that trains on a sample; None when it is left out at the end of its epoch."""
        ends: list[int | None] = [*(leg.step for leg in self.legs[1:]), None]
        for leg, end in zip(self.legs, ends, strict=True):
            step = self._step_in(leg, epoch, sample)
            if step is not None and (end is None or step <= end):
                return step
        return None

    def _step_in(self, leg: Leg, epoch: int, sample: int) -> int | None:
        size = leg.global_batch_size
        if self.samples is None or epoch == leg.epoch:
            number = (sample - leg.position) // size
            is_there = sample >= leg.position and (self.samples is None or number < self._rest(leg))
            return leg.step + 1 + number if is_there else None
        steps = self.samples // size
        if epoch < leg.epoch or sample >= steps * size:
            return None
        return leg.step + 1 + self._rest(leg) + (epoch - leg.epoch - 1) * steps + sample // size


def read_legs(state: dict[str, Any]) -> tuple[Leg, ...]:
    """The legs that a checkpoint tells of. Raises SetError where it tells of none: those of version 0.1.0 count samples only."""
    if "history" in state:
        try:
            return tuple(Leg(**leg) for leg in state["history"])
        except TypeError as error:
            raise SetError(f"history of the checkpoint: {state['history']!r} ({error}); it is damaged") from None
    step, consumed = state.get("step", 0), state.get("consumed", 0)
    if step and consumed % step == 0:
        return (Leg(0, 0, 0, consumed // step),)
    raise SetError(
        f"the checkpoint tells of {consumed} samples in {step} steps, so its steps had different batches, and not which; trace one "
        "that was saved by this version"
    )


def with_leg(legs: Sequence[Leg], new: Leg) -> tuple[Leg, ...]:
    """The legs of a job that goes on: those before, and the new one where its steps are of another size."""
    before = tuple(leg for leg in legs if leg.step < new.step)
    is_same = bool(before) and before[-1].global_batch_size == new.global_batch_size
    return before if is_same else (*before, new)
