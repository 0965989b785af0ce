"""How long a model takes on a kind of hardware: step times of prefill and decode.

Formulas and constants: fits to AIConfigurator 0.12 silicon tables (vLLM backend, BF16). They are kernel times; real
engines add some milliseconds a step, which online learning finds (`core.tokens.beliefs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Step-time constants of model x hardware x tensor parallelism, in milliseconds and tokens.

    prefill_ms(n, p) = a + b*n + c*n*(p + n/2) with n new tokens after p cached ones;
    decode_ms(B, L) = d + e*B + f*L with B sequences that hold L context tokens together. `deviation` is the relative
    standard deviation of what real engines of this kind take, the engine's overhead of each step left out.
    """

    name: str
    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    e_ms: float
    f_ms: float
    deviation: float = 0.2

    def prefill_s(self, new_tokens: float, cached_tokens: float) -> float:
        """Seconds to compute `new_tokens` of a prompt after `cached_tokens`, alone on the instance."""
        n = new_tokens
        return 1e-3 * (self.a_ms + self.b_ms * n + self.c_ms * n * (cached_tokens + n / 2))

    def decode_step_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of one decode step (the TPOT) of a batch of `sequences` with `context_tokens` in all."""
        return 1e-3 * (self.d_ms + self.e_ms * sequences + self.f_ms * context_tokens)

    def mixed_step_s(self, prefills: list[tuple[int, int]], decode_sequences: int, decode_context_tokens: int) -> float:
        """Seconds of one engine step that computes prefill chunks and a decode batch together.

        `prefills` lists (new tokens, tokens before them) of each chunk. The work of both is added and the fixed
        cost is paid once, the larger of the two.
        """
        work_ms = self.e_ms * decode_sequences + self.f_ms * decode_context_tokens
        for new, before in prefills:
            work_ms += self.b_ms * new + self.c_ms * new * (before + new / 2)
        fixed_ms = max(self.a_ms if prefills else 0.0, self.d_ms if decode_sequences else 0.0)
        return 1e-3 * (fixed_ms + work_ms)


_LLAMA_8B = "llama-3.1-8b"
_LLAMA_70B = "llama-3.1-70b"
_QWEN_32B = "qwen3-32b"
_QWEN_8B = "qwen3-8b"

# (model family, hardware, tensor parallel size): a, b, c, d, e, f
_FITTED: dict[tuple[str, str, int], tuple[float, float, float, float, float, float]] = {
    (_LLAMA_8B, "h200_sxm", 1): (2.9677, 0.018754, 8.2404e-07, 4.9397, 0.010845, 2.9475e-05),
    (_LLAMA_8B, "h100_sxm", 1): (4.2953, 0.018138, 8.2471e-07, 6.4225, 0.010544, 4.1738e-05),
    (_LLAMA_8B, "a100_sxm", 1): (7.2771, 0.054967, 2.9545e-06, 11.496, 0.030251, 8.4993e-05),
    (_LLAMA_8B, "l40s", 1): (15.142, 0.058672, 3.0784e-06, 22.173, 0.035577, 0.00019066),
    (_LLAMA_70B, "h200_sxm", 4): (7.3403, 0.058953, 1.033e-06, 12.142, 0.032291, 1.8673e-05),
    (_LLAMA_70B, "h100_sxm", 4): (10.647, 0.057906, 1.0258e-06, 15.178, 0.032481, 2.6544e-05),
    (_LLAMA_70B, "a100_sxm", 4): (18.79, 0.15406, 3.6044e-06, 27.643, 0.097324, 5.8176e-05),
    (_LLAMA_70B, "h100_sxm", 8): (7.8234, 0.037623, 4.9371e-07, 10.107, 0.022618, 1.3333e-05),
    (_QWEN_32B, "h100_sxm", 2): (10.732, 0.04551, 1.6694e-06, 13.595, 0.026157, 4.2163e-05),
    (_QWEN_32B, "a100_sxm", 2): (18.021, 0.12571, 5.8526e-06, 24.386, 0.081778, 9.0063e-05),
    (_QWEN_8B, "l40s", 1): (17.077, 0.058555, 3.4391e-06, 22.346, 0.038325, 0.00021495),
}

KNOWN_HARDWARE = tuple(sorted({hardware for _, hardware, _ in _FITTED}))

# What is assumed of hardware that nobody has measured: an 8B model on an A100.
_UNKNOWN = _FITTED[_LLAMA_8B, "a100_sxm", 1]


def family(model: str) -> str:
    """Model family of the table that a served name belongs to, "" if none: `meta-llama/Llama-3.1-8B` is one."""
    name = model.lower().replace("meta-", "")
    for known in (_LLAMA_8B, _LLAMA_70B, _QWEN_32B, _QWEN_8B):
        if known in name:
            return known
    return ""


def _family_among(model: str, aliases: Iterable[str]) -> str:
    """Family of a model by its name, else the only one that its other names belong to, "" if there is none."""
    families = {family(model)} - {""} or {family(each) for each in aliases} - {""}
    return families.pop() if len(families) == 1 else ""


def fitted_on(hardware: str) -> tuple[tuple[str, int], ...]:
    """(model family, tensor parallel size) of each fit that there is for some hardware."""
    return tuple((model, size) for model, where, size in _FITTED if where == hardware)


# How far the table is trusted. Its fits are off by 5 to 14 % at the worst; versions and options of engines differ more.
_FITTED_DEVIATION = 0.2
_OTHER_MODEL_DEVIATION = 0.5
_OTHER_HARDWARE_DEVIATION = 0.8
_TABLE_PRECISIONS = frozenset(("", "auto", "bf16", "bfloat16", "fp16", "float16", "half"))


def profile_for(
    model: str,
    hardware: str,
    tensor_parallel: int,
    precision: str = "",
    pipeline_parallel: int = 1,
    aliases: Iterable[str] = (),
) -> Profile:
    """Profile to start from for a model on some hardware: the fit itself, else the nearest one known.

    `aliases` are other names of the same weights, or of adapters of them: they count if `model` says nothing. An
    unknown model takes the hardware's 8B fit; unknown hardware takes the table's middle; both are trusted less. The
    name tells kinds apart, so that what is learned about one never colours another.
    """
    precision = precision.lower()
    other_precision = precision not in _TABLE_PRECISIONS
    stages = f"pp{pipeline_parallel}" if pipeline_parallel > 1 else ""
    name = f"{model}/{hardware or 'unknown'}/tp{tensor_parallel}{stages}" + (f"/{precision}" if other_precision else "")
    constants = _FITTED.get((_family_among(model, aliases), hardware, tensor_parallel))
    deviation = _OTHER_MODEL_DEVIATION if other_precision or stages else _FITTED_DEVIATION
    if constants is None:
        constants = _FITTED.get((_LLAMA_8B, hardware, 1))
        deviation = _OTHER_MODEL_DEVIATION
    if constants is None:
        constants, deviation = _UNKNOWN, _OTHER_HARDWARE_DEVIATION
    return Profile(name, *constants, deviation)
