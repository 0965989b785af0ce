"""Types of columns: one place an instance."""

from __future__ import annotations

from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = float | Floats  # formulas that hold for one instance hold for a column of them
Number = TypeVar("Number", float, Floats)


def number(value: float) -> Floats:
    """A number as an array without dimensions, to count with a column: 0.2 µs, where a float takes 0.37."""
    return np.array(value, np.float64)


@overload
def plus(value: Floats, other: Numbers) -> Floats: ...
@overload
def plus(value: float, other: Floats) -> Floats: ...
@overload
def plus(value: float, other: float) -> float: ...
def plus(value: Numbers, other: Numbers) -> Numbers:
    """The sum; most terms of most costs are a plain 0, and no column is made anew for that."""
    return value if type(other) is float and other == 0.0 else value + other


@overload
def times(value: Floats, factor: float) -> Floats: ...
@overload
def times(value: float, factor: float) -> float: ...
def times(value: Numbers, factor: float) -> Numbers:
    """The product; most factors of weights are 1, and no column is made anew for that."""
    return value if factor == 1.0 else value * factor
