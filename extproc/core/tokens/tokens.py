"""How many tokens a prompt has, estimated from its byte classes and calibrated by the counts that engines report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

import msgspec
import numpy as np

from extproc.core.tokens.token_counts import COUNT_NAMES, Counts, count_classes

MAX_MODELS = 256
_MEMORY_REQUESTS = 2000  # a weight without evidence is back at its prior's uncertainty after so many requests
_ERROR_MEMORY = 100  # requests that the stated error looks back on
_OUTLIER_DEVIATIONS = 3.0  # surprises beyond this many typical errors count as this many
_SIZES_TOKENS = (256, 4096)  # errors are stated for prompts below, between and above
_PRIOR_ERRORS = (0.25, 0.2, 0.15)
_MIN_ERROR = 0.01

# Tokens that one of each class costs, with a standard deviation: means and spread of non-negative least-squares fits to
# the vocabularies of Qwen, DeepSeek V4, GPT-4 (cl100k), gpt-oss (o200k) and Mistral (Tekken) on code, JSON, English,
# Chinese and, for the last one, twenty other languages. The first two are what chat templates usually add.
_PRIOR: dict[str, tuple[float, float]] = {
    "requests": (3.0, 50.0),
    "pieces": (1.0, 3.0),
    "letter_runs": (0.58, 0.3),
    "lower": (0.062, 0.05),
    "upper": (0.15, 0.12),
    "camel": (1.3, 0.5),
    "digit_runs": (1.9, 0.4),
    "digits": (0.18, 0.25),
    "blank_runs": (0.22, 0.2),
    "more_blanks": (0.027, 0.02),
    "line_ends": (0.78, 0.3),
    "more_line_ends": (0.1, 0.2),
    "symbol_runs": (0.79, 0.2),
    "more_symbols": (0.1, 0.05),
    "cjk": (0.75, 0.25),
    "other": (0.45, 0.3),
}
_PRIOR_WEIGHTS = tuple(_PRIOR[name][0] for name in COUNT_NAMES)
_MOST_VARIANCES = np.array([_PRIOR[name][1] ** 2 for name in COUNT_NAMES])
_GROWTH = _MOST_VARIANCES / _MEMORY_REQUESTS  # of each variance, with every request


class Estimate(msgspec.Struct, frozen=True):
    """Tokens that a prompt is believed to have.

    `relative_error` is the mean absolute error, as a share of the tokens, of recent estimates for prompts of this size
    and model. `counts` are what it was made from: handed to `TokenEstimator.learn` they spare it the prompt.
    """

    tokens: int
    relative_error: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class ExactCount:
    """A prompt's tokens as the engine will count them, and how many of them were known from earlier prompts."""

    tokens: int
    reused_tokens: int
    token_ids: Sequence[int] | None = None  # where asked for


class TokenEstimator:
    """Estimates for any model; those that have been answered with a token count are calibrated, each for itself.

    Only answered models are kept, the `max_models` most recently answered ones.
    """

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._max_models = max_models
        self._models: OrderedDict[str, _Calibration] = OrderedDict()
        self._unknown = _Calibration()

    def estimate(self, model: str, pieces: Sequence[bytes]) -> Estimate:
        """Estimate the tokens of a prompt's text, chat template included; pieces are its parts as UTF-8."""
        return self.of_counts(model, count_classes(pieces))

    def of_counts(self, model: str, counts: Counts) -> Estimate:
        """The same for a text that has been counted."""
        calibration = self._models.get(model, self._unknown)
        tokens = calibration.tokens(counts)
        return Estimate(max(1, round(tokens)), calibration.relative_error(tokens), counts)

    def learn(self, model: str, counts: Sequence[float], true_tokens: int) -> None:
        """Take in how many tokens an engine counted for a prompt that had these counts.

        `true_tokens` should be of the text alone. Tokens of images or audio that the caller could not take off are
        bounded as outliers. Counts of another length (from another version of this program) and true counts below
        1 are ignored.
        """
        if len(counts) != len(COUNT_NAMES) or true_tokens < 1:
            return
        calibration = self._models.get(model)
        if calibration is None:
            calibration = self._models[model] = _Calibration()
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
        self._models.move_to_end(model)
        calibration.learn(counts, true_tokens)


class _Calibration:
    """Weights of one model: a Kalman filter whose state is the weights and whose measurement is a reported count.

    Recursive least squares in the form that forgets without winding up: every request adds a little variance to each
    weight, never beyond its prior's (S. Haykin, Adaptive Filter Theory, on RLS as the Kalman filter of a random walk).
    Both sides are divided by the tokens, so that relative errors are minimised.
    """

    def __init__(self) -> None:
        self._weights = list(_PRIOR_WEIGHTS)  # no array: an estimate multiplies them by as few whole numbers
        self._covariance = np.diag(_MOST_VARIANCES)
        self._variances = self._covariance.reshape(-1)[:: len(_PRIOR_WEIGHTS) + 1]  # its diagonal, to be written to
        self._errors = list(_PRIOR_ERRORS)
        self._samples = [0] * len(_PRIOR_ERRORS)

    def tokens(self, counts: Sequence[float]) -> float:
        """Tokens by the weights of now."""
        return float(sum(map(mul, self._weights, counts)))

    def relative_error(self, tokens: float) -> float:
        """Mean absolute relative error at a prompt's size."""
        return self._errors[_size_class(tokens)]

    def learn(self, counts: Sequence[float], true_tokens: int) -> None:
        """Update weights and stated error by one reported count."""
        expected = max(1.0, self.tokens(counts))
        scale_tokens = max(expected, float(true_tokens))  # bounds the leverage of a prompt that is far off
        surprise = (true_tokens - expected) / scale_tokens
        size = _size_class(expected)
        limit = _OUTLIER_DEVIATIONS * max(self._errors[size], _MIN_ERROR)
        self._note_error(size, min(abs(true_tokens - expected) / true_tokens, limit))
        self._forget()
        self._correct([count / scale_tokens for count in counts], max(-limit, min(limit, surprise)), scale_tokens)

    def _note_error(self, size: int, error: float) -> None:
        self._samples[size] += 1
        self._errors[size] += (error - self._errors[size]) / min(self._samples[size] + 5, _ERROR_MEMORY)

    def _forget(self) -> None:
        """Grow each weight's variance a little, up to its prior's; row and column are scaled alike."""
        self._variances += _GROWTH
        scale = np.sqrt(np.minimum(1.0, _MOST_VARIANCES / self._variances))
        self._covariance *= scale
        self._covariance *= scale[:, None]

    def _correct(self, regressors: list[float], surprise: float, scale_tokens: float) -> None:
        """Kalman update of weights and covariance; weights stay at or above zero."""
        measured = np.array(regressors)
        projected = self._covariance @ measured
        gain = projected / (projected @ measured + _noise_variance(scale_tokens))
        self._weights = np.maximum(0.0, self._weights + gain * surprise).tolist()
        self._covariance -= gain[:, None] * projected


def _noise_variance(tokens: float) -> float:
    """Variance of the relative error that the best weights leave; words of a short prompt do not average out."""
    return 0.04**2 + 0.3 / tokens


def _size_class(tokens: float) -> int:
    return sum(tokens >= size for size in _SIZES_TOKENS)
