"""Lets `python -m extproc` stand for the `extproc` command."""

import sys

from extproc.cli import main

sys.exit(main())
