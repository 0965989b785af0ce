"""A measurement's second process: ended with it, by Ctrl-C too, and never with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from extproc.bench.beside import beside

PATIENT_S = 60.0

_INTERRUPTED = """
import signal
from multiprocessing.connection import Connection
from extproc.bench.beside import beside
from tests.bench.test_beside import tell_and_wait

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    try:
        with beside(tell_and_wait) as child:
            print(child.recv(), flush=True)
            while not child.poll(0.05):  # a signal just before a read that waits is noticed after it alone
                pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def tell_and_wait(told: Connection) -> None:
    told.send(os.getpid())
    time.sleep(PATIENT_S)


def fail(told: Connection) -> None:
    told.send("begun")
    os._exit(3)


def test_it_ends_with_the_context() -> None:
    """Whatever it does at that moment."""
    with beside(tell_and_wait) as child:
        process_id = child.recv()
    assert not Path(f"/proc/{process_id}").exists()


def test_one_that_fails_is_heard_of() -> None:
    """A measurement that waited for it would wait for ever."""
    with beside(fail) as child:
        assert child.recv() == "begun"
        with pytest.raises(EOFError):
            child.recv()


def test_control_c_does_not_end_it_before_its_owner_has_taken_it() -> None:
    """Else the owner hears of an end that it knows no reason for."""
    with beside(tell_and_wait) as child:
        os.kill(child.recv(), signal.SIGINT)
        assert not child.poll(0.5)


def test_control_c_ends_both_without_a_word(tmp_path: Path) -> None:
    """It goes to all processes of a terminal."""
    program = tmp_path / "measure.py"
    program.write_text(_INTERRUPTED)
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, program], **piped) as measuring:
        assert measuring.stdout is not None
        process_id = int(measuring.stdout.readline())
        os.killpg(measuring.pid, signal.SIGINT)
        said, complained = measuring.communicate(timeout=PATIENT_S)
    assert (said, complained, measuring.returncode) == ("interrupted\n", "", 0)
    assert not Path(f"/proc/{process_id}").exists()
