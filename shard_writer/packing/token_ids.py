"""The type of stored token ids; apart from ragged.py, as what only reads sets has no use for pyarrow."""

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.uint16] | NDArray[np.uint32]  # (tokens,)
