"""How fast a model is on one instance, as far as is known: what the cost of a request is computed from."""

from __future__ import annotations

import msgspec

from extproc.core.speeds.profile import Profile


class Speed(msgspec.Struct, frozen=True):
    """A prior profile with what was learned: seconds = overhead + scale * what the profile says.

    Scales and overheads are those of the instance, its own factor included. `uncertainty` is the relative standard
    deviation of what is predicted; it is that of the prior before anything was learned.
    """

    prior: Profile
    prefill_scale: float = 1.0
    decode_scale: float = 1.0
    prefill_overhead_s: float = 0.0
    decode_overhead_s: float = 0.0
    uncertainty: float = 0.0

    def coefficients(self) -> tuple[float, float, float, float, float, float]:
        """The same as six numbers: prefill_s(n, p) = a + n*(b + c*(p + n/2)), decode_step_s(B, L) = d + e*B + f*L."""
        prior, prefill, decode = self.prior, 1e-3 * self.prefill_scale, 1e-3 * self.decode_scale
        return (
            self.prefill_overhead_s + prefill * prior.a_ms,
            prefill * prior.b_ms,
            prefill * prior.c_ms,
            self.decode_overhead_s + decode * prior.d_ms,
            decode * prior.e_ms,
            decode * prior.f_ms,
        )

    def prefill_s(self, new_tokens: float, cached_tokens: float) -> float:
        """Seconds to compute `new_tokens` of a prompt after `cached_tokens`, alone on the instance."""
        return self.prefill_overhead_s + self.prefill_scale * self.prior.prefill_s(new_tokens, cached_tokens)

    def decode_step_s(self, sequences: float, context_tokens: float) -> float:
        """Seconds of one decode step of a batch (the TPOT of each of its sequences)."""
        return self.decode_overhead_s + self.decode_scale * self.prior.decode_step_s(sequences, context_tokens)
