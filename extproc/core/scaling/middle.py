"""The middle of numbers of which some are not known. Several times as fast for few numbers as `np.nanmedian`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def middle_two(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two in the middle over the last axis, of an odd number the same one twice; NaN left out.

    NaN both where there is nothing else. The median is half of their sum. No value is infinite.
    """
    size = values.shape[-1]
    count = np.isfinite(values).sum(axis=-1)
    ordered = np.sort(values, axis=-1).ravel()  # NaN last
    begins = np.arange(0, values.size, size).reshape(count.shape)
    low = ordered[begins + np.maximum(0, (count - 1) // 2)]
    high = ordered[begins + np.minimum(count // 2, size - 1)]
    return low, np.where(count == 0, np.nan, high)
