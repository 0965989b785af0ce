"""Makes one dump of a prefix index out of those of several routers, each of which saw a share of the same traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def merged_dumps(dumps: Sequence[bytes]) -> bytes:
    """The union of dumps of `PrefixIndex.dump`, in the same form: the least recently used block first.

    A block is as recent as in the dump that has it nearest to its end. So blocks of a chain keep their order, and none
    loses its parent to an eviction before itself. Raises ValueError if one of them is not of 64-bit words.
    """
    words = [np.frombuffer(dump, "<u8") for dump in dumps if dump]
    if not words:
        return b""
    blocks = np.concatenate(words)
    ranks = np.concatenate([np.arange(len(each))[::-1] for each in words])  # 0: used last
    latest_first = blocks[np.argsort(ranks, kind="stable")]
    firsts = np.sort(np.unique(latest_first, return_index=True)[1])
    merged: npt.NDArray[np.uint64] = latest_first[firsts][::-1]
    return merged.astype("<u8").tobytes()
