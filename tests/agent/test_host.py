"""Reading how pressed a machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.agent import host
from extproc.core.values.instance import Host

PSI = "some avg10=12.50 avg60=0.70 avg300=0.85 total=328526806\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:     {} kB\nBuffers: 1 kB\n"
NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0
  eth0: {} 10 0 0 0 0 0 0 50 7 0 0 0 0 0 0
veth1a: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
   ib0:2000 5 0 0 0 0 0 0 3000 5 0 0 0 0 0 0
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PSI, 0.125),
        ("\n" + PSI, 0.125),
        ("full avg10=1.00\n", None),
        ("", None),
        ("some avg10=x\n", None),
        ("some avg10=nan\n", None),
    ],
)
def test_pressure_is_the_share_of_time_that_some_task_waited(page: str, expected: float | None) -> None:
    """Of the last ten seconds."""
    assert host.pressure(page) == expected


@pytest.mark.parametrize(
    ("page", "cpus", "expected"),
    [("8.00 1 1 1/1 1", 4, 0.5), ("2.00 1 1", 4, 0.0), ("0.00 0 0", 4, 0.0), ("", 4, None), ("8.0", 0, None)],
)
def test_the_load_average_stands_in_for_cpu_pressure(page: str, cpus: int, expected: float | None) -> None:
    """The share of runnable tasks for which there is no CPU."""
    assert host.load_pressure(page, cpus) == expected


@pytest.mark.parametrize(("available", "expected"), [("8000000", 0.0), ("800000", 0.5), ("0", 1.0), ("x", None)])
def test_scarce_memory_stands_in_for_memory_pressure(available: str, expected: float | None) -> None:
    """It begins where a tenth of the memory is left."""
    assert host.scarcity(MEMINFO.format(available)) == expected


def test_network_bytes_are_those_of_interfaces_that_lead_out() -> None:
    """Loopback and the machine's inner wiring would count traffic that goes nowhere, or twice."""
    assert host.network_bytes(NET_DEV.format(100)) == 100 + 50 + 5000
    assert host.network_bytes("") is None


def proc(folder: Path, received: int, *, psi: bool) -> Path:
    (folder / "net").mkdir(exist_ok=True)
    (folder / "net/dev").write_text(NET_DEV.format(received))
    (folder / "loadavg").write_text("0.00 0 0 1/1 1")
    (folder / "meminfo").write_text(MEMINFO.format(800000))
    if psi:
        (folder / "pressure").mkdir()
        for name in ("cpu", "memory", "io"):
            (folder / "pressure" / name).write_text(PSI)
    return folder


def test_a_machine_with_pressure_information_tells_all_of_it(tmp_path: Path) -> None:
    """The network's rate needs a second reading."""
    read = host.HostReader(proc(tmp_path, 100, psi=True)).read()
    assert read == Host(cpu_pressure=0.125, memory_pressure=0.125, io_pressure=0.125)


def test_a_machine_without_it_tells_what_it_can(tmp_path: Path) -> None:
    """I/O has nothing to stand in for it."""
    read = host.HostReader(proc(tmp_path, 100, psi=False)).read()
    assert read == Host(cpu_pressure=0.0, memory_pressure=0.5)


def test_a_machine_that_is_not_linux_tells_nothing(tmp_path: Path) -> None:
    """Unknown, not zero, and no error."""
    assert host.HostReader(tmp_path / "nowhere").read() == Host()


def test_a_name_of_an_interface_may_be_any_bytes(tmp_path: Path) -> None:
    """Linux takes all but a slash, a colon and blanks; nothing would be published of a machine that has one."""
    folder = proc(tmp_path, 100, psi=False)
    dev = folder / "net/dev"
    dev.write_bytes(dev.read_bytes().replace(b"ib0", b"\xff0"))
    assert host.HostReader(folder).read() == Host(cpu_pressure=0.0, memory_pressure=0.5)


def test_the_networks_rate_is_that_between_two_readings(tmp_path: Path) -> None:
    """Counters that went back, as after a change of interfaces, give none."""
    now_s = 50.0
    reader = host.HostReader(proc(tmp_path, 1000, psi=False), clock=lambda: now_s)
    rates = []
    for received in (1000, 5000, 5000, 10):
        proc(tmp_path, received, psi=False)
        rates.append(reader.read().network_bytes_s)
        now_s += 2.0
    assert rates == [None, 2000.0, 0.0, None]
