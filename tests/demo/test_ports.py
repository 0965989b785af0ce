"""Free ports: no two of those given are the same, whoever asks, and no client's connection is given one."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from extproc.demo import ports
from extproc.demo.ports import HOST, free_port


def test_no_port_is_given_twice_before_its_program_may_listen() -> None:
    given = [free_port() for _ in range(1000)]
    assert len(set(given)) == len(given)


def test_no_process_is_given_a_port_that_another_was() -> None:
    given = {free_port() for _ in range(10)}
    code = f"from extproc.demo import ports; ports._ports = iter({sorted(given)} + [0]); print(ports.free_port())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_process_that_ends_has_nothing_to_complain_of() -> None:
    code = "from extproc.demo.ports import free_port; [free_port() for _ in range(300)]"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_what_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        monkeypatch.setattr(ports, "_ports", iter([taken.getsockname()[1]]))
        with pytest.raises(OSError, match="no port is free"):
            free_port()


@pytest.mark.parametrize(
    ("drawn", "given"),
    [
        ((32_768, 60_999), range(22_768, 32_768)),
        ((49_152, 65_535), range(39_152, 49_152)),
        ((10_000, 65_000), range(1_024, 10_000)),
        ((1_024, 60_000), range(60_001, 65_536)),
        ((1_024, 65_535), range(1_024, 65_536)),
    ],
)
def test_clients_connections_are_given_other_ports(drawn: tuple[int, int], given: range) -> None:
    assert ports._range(drawn) == given


def test_the_systems_range_is_read() -> None:
    low, high = ports._drawn()
    assert 1024 <= low < high <= 65_535
    assert not low <= free_port() <= high
