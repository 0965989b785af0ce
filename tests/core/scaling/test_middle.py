"""The middle of what is known."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from extproc.core.scaling.middle import middle_two


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([3.0], (3.0, 3.0)),
        ([3.0, 1.0], (1.0, 3.0)),
        ([3.0, np.nan, 1.0], (1.0, 3.0)),
        ([3.0, 2.0, 1.0, np.nan], (2.0, 2.0)),
        ([4.0, 2.0, 1.0, 3.0], (2.0, 3.0)),
        ([np.nan, np.nan], (np.nan, np.nan)),
    ],
)
def test_the_middle_one_or_two_of_what_is_known(values: list[float], middle: tuple[float, float]) -> None:
    """Of an odd number the same one twice."""
    np.testing.assert_array_equal(middle_two(np.array(values)), middle)


@pytest.mark.parametrize("shape", [(1, 1), (7, 4), (5, 3, 9)])
def test_half_of_their_sum_is_the_median(shape: tuple[int, ...]) -> None:
    """To the last digit, over the last axis of as many as there are."""
    random = np.random.default_rng(1)
    for known in (0.1, 0.6, 1.0):
        values = np.where(random.random(shape) < known, random.random(shape), np.nan)
        low, high = middle_two(values)
        with warnings.catch_warnings(action="ignore"):  # rows of which nothing is known
            np.testing.assert_array_equal((low + high) / 2, np.nanmedian(values, axis=-1))
