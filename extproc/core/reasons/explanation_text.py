"""An explanation for people: text and tables of 100 columns, or one line for a header.

Text is wrapped and never cut. A table whose numbers leave no room is wider, since numbers that are cut would be others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap

from extproc.core.reasons.explanation import Explanation, Failed, Option, decimals, seconds
from extproc.core.reasons.measured import Measured
from extproc.text_table import table_lines

COLUMNS = 100
LINE_BYTES = 512
_MODELS_BYTES = 200  # of these, what is said of the choice of the model

_NAME_COLUMNS = 28
_INDENT = "  "
_GAP = 2  # columns between those of a table
_OTHER = "other"  # the smallest terms together, where the table would be too wide
_REJECTED_SHOWN = 40
_SHOWN_S = 0.0005  # a term below it shows as 0
_WITH = "  with "  # before who computes the prompt of a pair
_LEFT = frozenset({"INSTANCE", "REASON", "WHY NOT", ""})  # columns of words


def as_text(told: Explanation) -> str:
    """Several lines: the request, the choice, a table of options, who was left out and why, and the outcome."""
    chosen = [] if told.models is None else [told.models.text]
    head = (_request(told), *chosen, *_held(told), *_verdict(told))
    blocks = [[line for text in head for line in _wrapped(text)]]
    if told.options:
        blocks.append(_options((*told.options, *told.others)))
    if told.further:
        blocks[-1].append(f"and {told.further} more at a higher cost")
    if told.rejected:
        blocks.append(_rejected(told))
    if told.outcome is not None:
        blocks.append(_outcome(told, told.outcome))
    return "\n\n".join("\n".join(block) for block in blocks)


def as_line(told: Explanation, served_by: str = "") -> str:
    """At most 512 bytes of printable ASCII: what matters most first. `served_by`: the address that answered."""
    request = told.request
    parts = [f"id={request.trace_id or request.id}"]
    if told.shadow:
        parts.append(f"shadow: would be {told.shadow}")
    if told.held_s is not None:
        parts.append(f"held={told.held_s:.3f}s")
    if told.models is not None:
        parts.append(f"model: {told.models.text}"[:_MODELS_BYTES])
    if not told.options:
        parts += [f"instance=none; {told.miss.reason}: {told.miss.text}" if told.miss else "instance=none"]
        return _printable("; ".join(parts))
    chosen = told.options[0]
    drains = " (Draining, a continuation)" if chosen.continues else ""
    parts.append(f"instance={chosen.instance[:_NAME_COLUMNS]}{drains}")
    other = next((option.instance for option in told.options[1:] if option.address == served_by), "")
    if other or (served_by and served_by != chosen.address):
        parts.append(f"served by={(other or served_by)[:_NAME_COLUMNS]}")
    if told.partner:
        parts.append(f"prompt by={told.partner[:_NAME_COLUMNS]}")
    parts.append(f"cost={chosen.total_s:.3f}s ({_terms(chosen)})")
    source = f" {chosen.cached_source}" if chosen.cached_source else ""
    parts.append(f"cached={chosen.cached_tokens}/{request.prompt_tokens}{source}")
    if told.second is not None:
        parts.append(f"second: {told.second.text}")
    return _printable("; ".join(parts))


def _request(told: Explanation) -> str:
    request = told.request
    name = request.trace_id or request.id
    error = f" ±{request.token_error:.0%}" if request.token_error else ""
    return (
        f"request {name}: {request.api} of {request.model}, {request.prompt_tokens:,} prompt tokens{error}, "
        f"{request.expected_output_tokens:,} of output, {request.request_class}"
    )


def _held(told: Explanation) -> list[str]:
    return [] if told.held_s is None else [f"was held for {seconds(told.held_s)} s before that was decided"]


def _verdict(told: Explanation) -> list[str]:
    goes = "goes"
    shadow = []
    if told.shadow:
        goes = "would go"
        shadow = [f"in shadow: Envoy balanced it by itself; it would have been {told.shadow}"]
    return [*shadow, *_where(told, goes)]


def _where(told: Explanation, goes: str) -> list[str]:
    if told.options:
        first, partner = told.options[0], f"; {told.partner} computes its prompt" if told.partner else ""
        lines = [f"{goes} to {first.instance} at {seconds(first.total_s)} s{partner}"]
        return [*lines, *([told.second.text] if told.second else [])]
    if told.miss is None:
        return [f"{goes} nowhere: no instance is known"]
    return [f"{goes} nowhere: {told.miss.reason}", f"nearest: {told.miss.text}"]


def _terms(option: Option) -> str:
    shown = {name: value for name, value in option.terms_s.items() if abs(value) >= _SHOWN_S}
    return " ".join(f"{name}={value:.3f}" for name, value in shown.items())


def _options(options: Sequence[Option]) -> list[str]:
    """A row an option, and its partner below it; a column a term; terms that are 0 everywhere are named below."""
    names = list(dict.fromkeys(name for option in options for name in option.terms_s))
    largest = {name: max(abs(option.terms_s.get(name, 0.0)) for option in options) for name in names}
    shown = [name for name in names if largest[name] >= _SHOWN_S]
    merged: list[str] = []
    while True:
        lines = _table(_option_rows(options, shown, merged))
        if len(shown) < 2 or max(map(len, lines)) <= COLUMNS:
            break
        merged.append(min(shown, key=largest.__getitem__))
        shown.remove(merged[-1])
    zero = [name for name in names if name not in shown and name not in merged]
    notes = [f"{_OTHER}: {', '.join(merged)}"] if merged else []
    notes += [f"0 everywhere: {', '.join(zero)}"] if zero else []
    notes += [f"{option.instance} {option.doubt}; but no better one is left" for option in options if option.doubt]
    notes += [f"{option.instance} {option.continues}" for option in options if option.continues]
    return [*lines, *(line for note in notes for line in _wrapped(note, _INDENT))]


def _option_rows(options: Sequence[Option], shown: Sequence[str], merged: Sequence[str]) -> list[list[str]]:
    head = ["INSTANCE", "COST", *(name.upper() for name in shown), *([_OTHER.upper()] if merged else [])]
    rows = [[*head, "TTFT", "TPOT", "CACHED"]]
    for option in options:
        values = [option.total_s, *(option.terms_s.get(name, 0.0) for name in shown)]
        if merged:
            values.append(sum(option.terms_s.get(name, 0.0) for name in merged))
        cells = [f"{value:.{_column_decimals(options)}f}" for value in values]
        cached = f"{option.cached_tokens:,} {option.cached_source}".strip()
        times = [f"{seconds(option.ttft_s)} s", f"{1000 * option.tpot_s:.1f} ms"]
        rows.append([_short(option.instance), *cells, *times, cached])
        if option.partner is not None:  # on a line of its own: two long names side by side leave no room
            rows.append([f"{_WITH}{_short(option.partner)}", *[""] * (len(rows[0]) - 1)])
    return rows


def _column_decimals(options: Sequence[Option]) -> int:
    """Costs stand below each other, so all have as many decimals as the least one needs, and one more."""
    return min(3, decimals(min(abs(option.total_s) for option in options)) + 1)


def _rejected(told: Explanation) -> list[str]:
    shown = told.rejected[:_REJECTED_SHOWN]
    lines = _table([["INSTANCE", "WHY NOT", ""], *_rejected_rows(shown)])
    rest = Counter(each.reason.value for each in told.rejected[_REJECTED_SHOWN:])
    if rest:
        text = "and " + ", ".join(f"{count} more {reason}" for reason, count in rest.most_common())
        lines += _wrapped(text, _INDENT)
    return lines


def _rejected_rows(shown: Sequence[Failed]) -> Iterator[list[str]]:
    """A row each, and more below it for the rest of a long text."""
    names = [[_short(each.instance), each.reason.value] for each in shown]
    taken = sum(max(map(len, column)) + _GAP for column in zip(*names, strict=True))
    for name, each in zip(names, shown, strict=True):
        first, *more = _wrapped(each.text, columns=COLUMNS - taken) or [""]
        yield [*name, first]
        yield from (["", "", line] for line in more)


def _outcome(told: Explanation, outcome: Measured) -> list[str]:
    retried = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    served = f" from {outcome.instance}" if outcome.instance else ""
    said = f"; Envoy says {', '.join(outcome.flags)}" if outcome.flags else ""
    lines = _wrapped(f"answered {outcome.status}{served}{retried} in {seconds(outcome.duration_s)} s{said}", _INDENT)
    if outcome.attempts == 1 and outcome.instance and told.options and not told.shadow:
        named = told.options[0]
        if named.instance != outcome.instance:
            lines += _wrapped(f"Envoy did not try {named.instance}: it may not know {named.address}", _INDENT)
    request = told.request
    served_option = next((option for option in told.options if option.instance == outcome.instance), None)
    predicted = served_option or (told.options[0] if told.options else None)
    if predicted is None:
        return lines
    rows = [
        ["TTFT", f"{seconds(predicted.ttft_s)} s", _or_dash(outcome.ttft_s, "{:.3f} s")],
        ["TPOT", f"{1000 * predicted.tpot_s:.1f} ms", _or_dash(outcome.tpot_s, "{:.1f} ms", 1000)],
        ["cached tokens", f"{predicted.cached_tokens:,}", _or_dash(outcome.cached_tokens, "{:,}")],
        ["prompt tokens", f"{request.prompt_tokens:,}", _or_dash(outcome.prompt_tokens, "{:,}")],
        ["output tokens", f"{request.expected_output_tokens:,}", _or_dash(outcome.completion_tokens, "{:,}")],
    ]
    return [*lines, *_table([["", "PREDICTED", "ACTUAL"], *rows])]


def _or_dash(value: float | None, form: str, factor: int = 1) -> str:
    return "-" if value is None else form.format(value * factor)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first one the head: words to the left, numbers to the right."""
    return table_lines(rows, right=[head for head in rows[0] if head not in _LEFT])


def _wrapped(text: str, indent: str = "", columns: int = COLUMNS) -> list[str]:
    """Lines of a text; all but the first are indented. Names are parted only where they are longer than a line."""
    return wrap(text, columns, subsequent_indent=indent, break_on_hyphens=False)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_COLUMNS else name[: _NAME_COLUMNS - 1] + "…"


def _printable(text: str) -> str:
    """What may stand in a header, cut to its length."""
    ascii_text = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return ascii_text[:LINE_BYTES]
