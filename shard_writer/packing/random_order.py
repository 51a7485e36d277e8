"""Random order from numbers alone: the same on every machine, process and library version.

numpy does not promise that its generators keep their streams from one release to the next, and a checkpoint must
outlive an upgrade, so order here comes from splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): a bijection of 64-bit words that passes BigCrush, in five vectorised operations.
"""

import numpy as np
from numpy.typing import NDArray

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(*words: int) -> int:
    """Hash a sequence of integers (each taken modulo 2**64) into one 64-bit word; order and number of words count."""
    state = len(words)
    for word in words:
        state = _finalize((state ^ (word & _MASK)) + _GAMMA)
    return state


def spread(key: int, count: int, start: int = 0) -> NDArray[np.uint64]:
    """The words `start` … `start + count - 1` of the stream named `key`: shape (count,), uint64, all different."""
    word = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    word *= np.uint64(_GAMMA)
    word += np.uint64(key)
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word


def permutation(count: int, *words: int) -> NDArray[np.int64]:
    """A uniformly random order of range(count) that `words` determine: shape (count,), int64."""
    return np.argsort(spread(mix(*words), count)).astype(np.int64, copy=False)


def _finalize(word: int) -> int:
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
