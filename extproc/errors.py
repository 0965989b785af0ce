"""Errors that reach a person: one readable line each, told with what to do about it."""

from __future__ import annotations


class ExtprocError(Exception):
    """A failure to report in one line; the command line exits with status 2."""


class ConfigError(ExtprocError):
    """A setting that cannot be used."""


class RegistryError(ExtprocError):
    """The Redis-protocol server cannot be reached or refused a command."""


class ProcessError(ExtprocError):
    """A program that extproc starts is missing, or ended before it was ready."""
