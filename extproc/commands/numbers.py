"""Numbers on the command line, checked as they are read: argparse types."""

from __future__ import annotations

import argparse
import math

_MOST = 2**53  # beyond, neither a float nor Envoy's configuration holds it


def seconds(text: str) -> float:
    """A finite time of more than 0 s; any other positive quantity as well."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def seconds_or_zero(text: str) -> float:
    """A finite time of 0 s or more."""
    value = _number(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def share(text: str) -> float:
    """A share of something, from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be from 0 to 1")
    return value


def count(text: str) -> int:
    """A whole number, 1 or more."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def count_or_zero(text: str) -> int:
    """A whole number, 0 or more."""
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def port(text: str) -> int:
    """A TCP port; 0 stands for a free one."""
    value = _whole(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if abs(value) > _MOST:
        raise argparse.ArgumentTypeError(f"must be {_MOST} at the most")
    return value
