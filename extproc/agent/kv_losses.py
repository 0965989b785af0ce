"""What could not be taken in of an engine's KV events, as lines for the log: only what has grown since last told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extproc.core.prefixes.kv_fold import KvFold
    from extproc.core.prefixes.kv_sequence import KvSequence


class KvLosses:
    """Reads the counters of one fold and of its ranks' sequences."""

    def __init__(self, fold: KvFold) -> None:
        self._fold = fold
        self._sequences: list[KvSequence] = []
        self._told: dict[str, int] = {}

    def watch(self, sequence: KvSequence) -> None:
        """Count one rank's sequence too."""
        self._sequences.append(sequence)

    @property
    def heard(self) -> int:
        """How often all ranks were heard: frames, and proofs that there was none."""
        return sum(sequence.heard for sequence in self._sequences)

    def lines(self) -> list[str]:
        """One line for each counter that has grown since the last call."""
        fold, sequences = self._fold, self._sequences
        counts = {
            f"blocks left out because {fold.max_blocks} are held already": fold.surplus_blocks,
            "blocks left out because they cannot be named": fold.unplaced_blocks,
            "gaps in the numbers of its frames": sum(sequence.gaps for sequence in sequences),
            "times that all blocks of a rank were forgotten": sum(sequence.resets for sequence in sequences),
        }
        told, self._told = self._told, counts
        return [
            f"{count - told.get(what, 0)} {what}, {count} in all"
            for what, count in counts.items()
            if count > told.get(what, 0)
        ]
