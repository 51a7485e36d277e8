"""The process group of what torchrun starts in the tests."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")


def in_group(work: Callable[..., Result], *args: str) -> Result:
    """What `work` returns, called in a group of gloo, on one thread, that ends when all ranks are through.

    What `work` made is gone by then. A model in DistributedDataParallel that outlived the group would be the last to let go of it: torch
    (2.13) then waits for the group's thread and holds the interpreter's lock, which that thread may want to free the barrier's tensor.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # use_cpu ignores ddp_timeout
    torch.set_num_threads(1)
    result = work(*args)
    dist.barrier()  # so that torchrun does not end a rank that has yet to write
    dist.destroy_process_group()
    return result
