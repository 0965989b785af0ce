"""Headers by which the load generator and the upstream understand each other."""

from __future__ import annotations

HOLD_HEADER = "x-bench-hold"  # a request that has it is not answered
STREAM_HEADER = "x-bench-stream"  # one that has it is answered by events
ECHO_HEADER = "x-bench-cluster"  # of the answer: where the decision sent the request; absent without a decision
