"""Errors that reach a person: one readable line each, told with what to do about it."""

from __future__ import annotations

UNREADABLE = (ValueError, RecursionError)
"""What decoding raises for bytes that others have written wrongly.

All of msgspec's errors are ValueErrors, as are those of bad UTF-8 and of numbers in text; for values too deep it raises
RecursionError.
"""

UNWRITABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What encoding raises for a value that has no form there: half a surrogate pair, more than 64 bits, such types."""


class ExtprocError(Exception):
    """A failure to report in one line; the command line exits with status 2."""


class ConfigError(ExtprocError):
    """A setting that cannot be used."""


class RegistryError(ExtprocError):
    """The Redis-protocol server cannot be reached or refused a command."""


class ProcessError(ExtprocError):
    """A program that extproc starts is missing, or ended before it was ready."""
