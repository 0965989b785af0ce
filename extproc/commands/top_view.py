"""What `extproc top` shows, as lines: head, instances, latest decisions. Text of the registry is made harmless."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from extproc.text_table import table_lines

_DECISIONS = 10
_LEAST_INSTANCES = 5

_HEAD = (
    "INSTANCE", "STATE", "HARDWARE", "IN FLIGHT", "RUN", "WAIT", "KV", "QUEUE", "REQ/S", "TOK/S", "PREFILL/S", "TPOT",
    "AGE",
)  # fmt: skip
_DECISION_HEAD = ("AGE", "TO", "MODEL", "PROMPT", "CACHED", "COST", "TTFT~", "TTFT", "END")
_LEFT = ("INSTANCE", "STATE", "HARDWARE", "TO", "MODEL", "END")
_RIGHT = tuple(name for name in (*_HEAD, *_DECISION_HEAD) if name not in _LEFT)

SORTS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "id": lambda row: row["id"],
    "in-flight": lambda row: (-row["in_flight"] - row["peers"], row["id"]),
    "kv": lambda row: (-(row["kv_usage"] or 0.0), row["id"]),
    "queue": lambda row: (-row["prefill_backlog_s"], row["id"]),
    "age": lambda row: (-row["age_s"], row["id"]),
}


def screen(told: dict[str, Any], order: str, height: int | None, trouble: str = "") -> list[str]:
    """Lines of one look; `height` is the screen's, None for all there is. `trouble`: why nothing newer is known."""
    head = [*([f"! {trouble}"] if trouble else []), *_head(told), ""]  # first: all below it is old
    fleet = sorted(told["instances"], key=SORTS[order])
    most = len(fleet)
    if height is not None:
        most = max(_LEAST_INSTANCES, height - len(head) - _DECISIONS - 4)
    lines = head + _table([_HEAD, *(_instance(row) for row in fleet[:most])])
    if len(fleet) > most:
        lines.append(f"and {len(fleet) - most} more; s sorts by {order}, next: {', '.join(SORTS)}")
    decisions = told["decisions"][:_DECISIONS]
    lines += ["", *_table([_DECISION_HEAD, *map(_decision, decisions)])]
    return lines if height is None else lines[:height]


def _head(told: dict[str, Any]) -> list[str]:
    rates, peers, held = told["rates"], told["peers"], told["held"]
    state = "live" if not told["degraded"] else "DEGRADED " + ", ".join(each["rung"] for each in told["degraded"])
    silence_s = told["redis_silence_s"]
    redis = "Redis never heard" if silence_s is None else f"Redis heard {_s(silence_s)} ago"
    lines = [
        f"extproc {told['fleet']}: {state}   {redis}   "
        f"other routers: {peers['routers']} with {peers['requests']} requests   up {_s(told['uptime_s'])}",
        f"{_rate(rates['routed_per_s'])} req/s, {told['in_flight']} in flight   "
        f"TTFT {_s(rates['ttft_s'])} (predicted {_s(rates['predicted_ttft_s'])})   "
        f"{_rate(rates['output_tokens_per_s'])} tok/s   cached {_share(rates['cached_share'])}   "
        f"reply {_s(rates['reply_s'])}",
        f"{_rate(rates['failed_per_s'])} failed/s, {_rate(rates['refused_per_s'])} refused/s, "
        f"{_rate(rates['shed_per_s'])} shed/s, {_rate(rates['passed_on_per_s'])} passed on/s   "
        + (f"{held['held']} held, the longest {_s(held['longest_s'])}" if told["admission"] else "no admission rules"),
    ]
    lines += [f"! {each['rung']}: {each['detail']}" for each in told["degraded"]]
    if told["autoscaler"] is not None:
        pools = [f"{each['pool']} {each['ready']} -> {each['desired']}" for each in told["autoscaler"]["pools"]]
        lines.append(f"autoscaler, {_s(told['autoscaler']['age_s'])} ago: {', '.join(pools) or 'no pool'}")
    return [harmless(line) for line in lines]


def _instance(row: dict[str, Any]) -> tuple[str, ...]:
    state = row["lifecycle"] + "".join(f" {rung}" for rung in row["degraded"])
    if row["cooldown_s"] > 0:
        state += f" rests {_s(row['cooldown_s'])}"
    return (
        row["id"],
        state,
        row["hardware"] or "-",
        f"{row['in_flight']}+{row['peers']}" if row["peers"] else str(row["in_flight"]),
        _whole(row["running"]),
        _whole(row["waiting"]),
        _share(row["kv_usage"]),
        _s(row["prefill_backlog_s"]),
        _rate(row.get("routed_per_s")),
        _rate(row.get("output_tokens_per_s")),
        "-" if row["prefill_tokens_per_s"] is None else f"{row['prefill_tokens_per_s'] / 1000:.1f}k",
        _s(row["tpot_s"]),
        _s(row["age_s"]),
    )


def _decision(row: dict[str, Any]) -> tuple[str, ...]:
    outcome = row["outcome"]
    if row.get("shadow"):
        end = f"in shadow: {row['shadow']}"
        if row.get("went"):
            end += f", went to {row['went']}"
    elif row["instance"] is None:
        end = row["reason"] or "refused"
    elif outcome is None:
        end = "runs"
    else:
        again = f", {outcome['attempts']} attempts" if outcome["attempts"] > 1 else ""
        end = f"{outcome['status']} in {_s(outcome['duration_s'])}{again}"
    cached = None
    if row["cached_tokens"] is not None and row["prompt_tokens"]:
        cached = row["cached_tokens"] / row["prompt_tokens"]
    return (
        _s(row["age_s"]),
        row["instance"] or "nowhere",
        row["model"],
        str(row["prompt_tokens"]),
        _share(cached),
        _s(row["total_s"]),
        _s(row["ttft_s"]),
        _s(None if outcome is None else outcome["ttft_s"]),
        end,
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return table_lines([[harmless(cell) for cell in row] for row in rows], right=_RIGHT)


def harmless(text: str) -> str:
    """Text without control characters: a name in the registry or in a request must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _s(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms"
    if value < 6000:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.0f} s" if value < 300 else f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)
