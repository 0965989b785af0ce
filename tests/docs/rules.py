"""Who runs a documented command: a sandbox, our own parser, or nobody, and then why."""

from __future__ import annotations

import re
import shlex
from enum import StrEnum

from tests.docs.blocks import DOCS, Command, commands_of


class Way(StrEnum):
    """How a line is held against what is there."""

    RUN = "run here and now: it prints and ends"
    SLOW = "run with -m docs: it ends, after seconds"
    LIVE = "run with -m docs, against a fleet that the test starts"
    PARSE = "its flags are parsed by the command itself"
    PYTEST = "its paths and markers exist"
    PIP = "its extras exist"
    EXISTS = "the script that it names is there and can be run"
    NOBODY = "not run, for the reason beside it"


# Of our own commands, what needs no fleet and ends at once.
_RUN = re.compile(r"extproc (envoy-config|digest|config (check|show|reference))\b")
# The quickstart's own fleet is started from these, in their order: tests/docs/test_quickstart.py.
QUICKSTART = commands_of(DOCS / "quickstart.md", "## The same by hand")
SLOW = ("extproc simulate --traffic 'chat?requests=2000' --fleet mixed --load 0.85",)
NOBODY = {
    "kubectl ": "needs a cluster; manifests are held against their schemas by tests of their own",
    "consul ": "needs Consul; what it reads is held against its own validation rules in tests/control",
    "docker ": "needs a container engine; the file it reads is tested by itself",
    "redis-cli ": "is a client of Redis' own; tests/registry runs the script by the same keys and arguments",
    "mkdocs ": "tests/docs/test_site.py and CI run it, into another directory",
    "curl ": "asks a deployment; the pages are asked by tests/server",
    "helm ": "needs a cluster",
    "promtool ": "is Prometheus' own; tests/observe runs it where it is installed",
    "kill ": "names a process of the reader's",
}


def bare(command: Command) -> str:
    """Without variables before it, and without the file that its output goes to."""
    text = re.sub(r"^(?:[A-Z_]+=\S*\s+)+", "", command.text)
    return re.sub(r"\s+>{1,2}\s+\S+$", "", text).strip()


def way(command: Command) -> Way | None:
    """The first rule that knows the line, or None: then it needs one."""
    text = bare(command)
    rules: list[tuple[bool, Way]] = [
        (command.text in {one.text for one in QUICKSTART}, Way.LIVE),
        (command.text in SLOW, Way.SLOW),
        (_RUN.match(text) is not None, Way.RUN),
        (text.startswith("extproc "), Way.PARSE),
        (text.startswith("echo "), Way.RUN),
        (re.match(r"(python3? -m )?pytest\b", text) is not None, Way.PYTEST),
        (re.match(r"python3? -m tests\.", text) is not None, Way.EXISTS),
        (text.startswith(("pip install", "python3 -m venv")), Way.PIP),
        (text.startswith("mkdocs build"), Way.NOBODY),
        (re.match(r"[\w.][\w./-]*/[\w.-]+(\s|$)", text) is not None, Way.EXISTS),
        (text.startswith(tuple(NOBODY)), Way.NOBODY),
    ]
    return next((found for fits, found in rules if fits), None)


def arguments(command: Command) -> list[str]:
    """What follows `extproc`. Raises ValueError where a quote is not closed."""
    return shlex.split(bare(command))[1:]
