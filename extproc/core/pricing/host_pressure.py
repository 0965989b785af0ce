"""What a pressed machine under an instance adds to a request, in seconds."""

from __future__ import annotations

from extproc.core.values.instance import Host
from extproc.core.values.request import Request

# Host work of one engine step, scheduling and launching: real engines add about 3 to 10 ms a step to the kernels' time
# (the note of the profile table that `core.speeds.profile` is made from). The lower end; what is learned has the rest.
_HOST_STEP_S = 0.003
_HOST_PROMPT_S_PER_TOKEN = 2e-6  # tokenizing on one core, 500,000 tokens a second
_WORST_PRESSURE = 0.9  # what is beyond it is not extrapolated


def waits(host: Host | None) -> float:
    """Seconds that a second of work on the host waits for CPU or memory, 0 where it is not known.

    Pressure p is the share of time in which some task waited (https://docs.kernel.org/accounting/psi.html), so work
    of w seconds that is runnable all the time takes up to w / (1 - p). The engine may not be the task that waits:
    this is the upper end. What a host always lacks is in the instance's learned speed; this is for what comes and goes.
    That starved hosts cost whole multiples of the TTFT: "Characterizing CPU-Induced Slowdowns in Multi-GPU LLM
    Inference" (2026), 1.4 to 5.4 times.
    """
    if host is None:
        return 0.0
    pressures = [each for each in (host.cpu_pressure, host.memory_pressure) if each is not None]
    if not pressures:
        return 0.0
    pressure = min(_WORST_PRESSURE, max(pressures))
    return pressure / (1.0 - pressure)


def first_token_work_s(request: Request) -> float:
    """Seconds of work on the host until a request's first token: its prompt, and one step."""
    return _HOST_STEP_S + request.prompt_tokens * _HOST_PROMPT_S_PER_TOKEN


def answer_work_s(request: Request) -> float:
    """Seconds of work on the host from there on: a step for each token."""
    return request.expected_output_tokens * _HOST_STEP_S
