"""What a job will do is known before it starts."""

import pytest

from shard_writer.errors import SettingError
from train.order import build
from train.plan import Plan
from train.world import World


@pytest.mark.parametrize(
    ("rows", "streams", "world_size", "batch_size", "global_batch_size", "batches", "steps", "left_out"),
    [
        (32, 8, 2, 2, None, 8, 8, 0),
        (32, 8, 2, 2, 8, 8, 4, 0),
        (12, 2, 2, 1, None, 6, 6, 0),
        (12, 4, 2, 3, None, 2, 2, 0),
        (100, 8, 2, 3, 12, 16, 8, 4),  # 96 samples in whole rounds
        (100, 8, 2, 5, 20, 8, 4, 20),  # 96 samples hold 4 global batches
        (100, 10, 1, 7, 14, 14, 7, 2),
        (100, 3, 3, 33, None, 1, 1, 1),
    ],
)
def test_an_epoch_is_whole_rounds_and_whole_global_batches(
    rows: int,
    streams: int,
    world_size: int,
    batch_size: int,
    global_batch_size: int | None,
    batches: int,
    steps: int,
    left_out: int,
) -> None:
    world = World(0, world_size)
    order = build([rows], seed=0, readers=world_size, streams=streams)
    plan = Plan.of(order, world, batch_size, global_batch_size)
    assert (plan.batches, plan.steps, plan.left_out) == (batches, steps, left_out)
    assert plan.left_out == rows - plan.steps * plan.global_batch_size
    assert plan.left_out < streams + plan.global_batch_size
    assert plan.batches * batch_size * world_size == plan.steps * plan.global_batch_size


@pytest.mark.parametrize(
    ("batch_size", "global_batch_size", "message"),
    [
        (0, None, "batch_size: 0, needed: at least 1"),
        (2, 6, "global_batch_size: 6, needed: a multiple of world_size × batch_size = 2 × 2 = 4"),
        (2, 0, "global_batch_size: 0, needed"),
        (2, 2, "global_batch_size: 2, needed"),
        (7, None, "an epoch has 12 samples .* less than one global batch of 14; use a smaller batch or more data"),
        (1, 14, "less than one global batch of 14"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batch_size: int, global_batch_size: int | None, message: str) -> None:
    order = build([13], seed=0, readers=2, streams=4)
    with pytest.raises(SettingError, match=message):
        Plan.of(order, World(0, 2), batch_size, global_batch_size)
