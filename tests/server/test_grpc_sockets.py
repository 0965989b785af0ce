"""The environment in which gRPC starts."""

from __future__ import annotations

import pytest

from extproc.server.grpc_sockets import read_directly


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, "-event_engine_listener"),
        ("", "-event_engine_listener"),
        ("tcp_frame_size_tuning", "tcp_frame_size_tuning,-event_engine_listener"),
        ("event_engine_listener", "event_engine_listener"),
        ("-event_engine_listener", "-event_engine_listener"),
    ],
)
def test_the_operators_own_word_on_it_stands(told: str | None, expected: str) -> None:
    """Other experiments of theirs are kept."""
    environment = {} if told is None else {"GRPC_EXPERIMENTS": told}
    read_directly(environment)
    assert environment == {"GRPC_EXPERIMENTS": expected}
