"""Types of columns: one place an instance."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = float | Floats  # formulas that hold for one instance hold for a column of them
Number = TypeVar("Number", float, Floats)
