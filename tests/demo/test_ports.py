"""Free ports: those that are given one after another are different ones."""

from __future__ import annotations

from extproc.demo.ports import free_port


def test_no_port_is_given_twice_before_its_program_may_listen() -> None:
    """Of 28,000 that the system draws from by chance, a thousand draws would be some twenty times the same."""
    given = [free_port() for _ in range(1000)]
    assert len(set(given)) == len(given)
