"""Pages of a service that was made up: any number of instances and decisions, with hostile names among them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from extproc.server.admin import Admin

HOSTILE = '"><img src=x onerror="document.title=`owned`"><script>document.title="owned"</script>\x1b[2J'
TERMS = ("queue", "prefill", "decode", "loading", "communication", "pressure", "harm", "tail", "miss", "doubt", "start",
         "money", "weights")  # fmt: skip


def instance_row(number: int, **changes: Any) -> dict[str, Any]:
    """As `views.fleet_view` tells it."""
    row: dict[str, Any] = {
        "id": f"gpu-{number}", "incarnation": "1", "address": f"10.0.0.1:{number}", "cluster": "pool",
        "models": ["llama-3.1-8b"], "hardware": "h100_sxm", "lifecycle": "Ready", "lifecycle_reason": "",
        "age_s": 0.2, "degraded": [], "running": number % 40, "waiting": number % 3, "kv_usage": number % 100 / 100,
        "in_flight": number % 40, "peers": 0, "foreign": 0, "prefill_backlog_s": number % 7 / 10,
        "prefix_blocks": 10 * number, "kv_blocks_told": None, "cooldown_s": 0.0, "zone": "", "role": "both",
        "engine": "vllm", "max_num_seqs": 256, "loading_progress": None, "ready_in_s": None, "price_per_hour": None,
        "prefill_tokens_per_s": 41_000.0, "tpot_s": 0.0071, "routed_per_s": 1.5, "failed_per_s": 0.0,
        "output_tokens_per_s": 210.0,
    }  # fmt: skip
    return row | changes


def decision_row(number: int, **changes: Any) -> dict[str, Any]:
    """As `dashboard.rows` tells it."""
    row: dict[str, Any] = {
        "id": f"d-{number}", "age_s": 0.3 + number, "model": "llama-3.1-8b", "api": "chat", "class": "interactive",
        "prompt_tokens": 1200 + number, "expected_output_tokens": 80, "instance": f"gpu-{number}", "partner": None,
        "reason": None, "cached_tokens": 600, "total_s": 0.71, "ttft_s": 0.041, "tpot_s": 0.007, "held_s": None,
        "rejected": 0, "shadow": None, "went": None,
        "outcome": {"status": 200, "attempts": 1, "ttft_s": 0.04, "tpot_s": 0.007, "duration_s": 0.6,
                    "completion_tokens": 75},
    }  # fmt: skip
    return row | changes


def overview(**changes: Any) -> dict[str, Any]:
    """As `server.overview` tells it."""
    rates = {
        f"{name}_per_s": 0.0 for name in ("routed", "refused", "shed", "passed_on", "finished", "failed", "retries")
    }
    told: dict[str, Any] = {
        "version": "1", "fleet": "f", "uptime_s": 3700.0, "degraded": [], "redis_silence_s": 0.1,
        "peers": {"routers": 1, "requests": 3}, "in_flight": 7, "admission": True,
        "held": {"held": 2, "by_class": {}, "by_tenant": {}, "longest_s": 1.5},
        "rates": rates | {"output_tokens_per_s": 0.0, "ttft_s": 0.05, "predicted_ttft_s": None, "cached_share": 0.5,
                          "reply_s": 0.002},
        "curves": {name: [None] * 60 + [float(each % 9) for each in range(60)]
                   for name in ("routed", "lost", "output_tokens", "ttft_s", "cached_share", "reply_s")},
        "decisions": [decision_row(number) for number in range(100)],
        "calibration": [
            {"request": f"c-{number}", "age_s": 1.0, "model": "m", "kind": f"kind-{number % 3}", "instance": "a",
             "predicted_ttft_s": 0.01 * (number + 1), "ttft_s": 0.011 * (number + 1), "predicted_tpot_s": 0.007,
             "tpot_s": 0.0071 if number % 2 else None}
            for number in range(400)
        ],
        "hits": [], "hot_prefixes": [], "autoscaler": None,
    }  # fmt: skip
    return told | changes


def explanation(request_id: str, name: str = "gpu-0") -> dict[str, Any]:
    """As `/decisions/ID` tells it."""
    terms = dict.fromkeys(TERMS, 0.0) | {"queue": 0.1, "prefill": 0.05, "decode": 0.5, "weights": -0.05}
    option = {"address": "10.0.0.1:1", "total_s": 0.6, "terms_s": terms, "cached_tokens": 600,
              "cached_source": "learned", "ttft_s": 0.041, "tpot_s": 0.007, "doubt": "", "continues": ""}  # fmt: skip
    return {
        "request": {"id": request_id, "trace_id": "t", "api": "chat", "model": name, "prompt_tokens": 1200,
                    "token_error": 0.01, "expected_output_tokens": 80, "request_class": "interactive", "priority": 0},
        "chosen": name, "partner": None,
        "options": [{"instance": name, "partner": None} | option, {"instance": "gpu-1", "partner": None} | option],
        "others": [{"instance": "gpu-2", "partner": name} | option],
        "further": 3,
        "rejected": [{"instance": name, "reason": "not_ready", "needs": "Ready", "has": "Loading", "text": name,
                      "continuation": None}] * 30,
        "second": {"instance": "gpu-1", "difference_s": 0.1, "terms_s": terms, "decided_by": "queue",
                   "near_tie": False, "text": f"{name} would have cost more", "partner": None},
        "miss": None, "models": None, "held_s": None, "shadow": "", "outcome": None,
    }  # fmt: skip


def hostile() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Fleet and overview whose every text is hostile."""
    row = instance_row(1, id=HOSTILE, models=[HOSTILE], hardware=HOSTILE, lifecycle_reason=HOSTILE, zone=HOSTILE)
    named = {"model": HOSTILE, "instance": HOSTILE, "reason": HOSTILE}
    told = overview(
        fleet=HOSTILE,
        degraded=[{"rung": HOSTILE, "detail": HOSTILE}],
        decisions=[decision_row(1, id="h-1", **named), decision_row(2, **(named | {"instance": None}))],
        hits=[{"instance": HOSTILE, "model": HOSTILE, "requests": 1, "prompt_tokens": 9, "believed_tokens": 3,
               "checked_tokens": 9, "cached_tokens": 4}],
        hot_prefixes=[{"id": "abcdef", "model": HOSTILE, "tokens": 640, "lately": 3.0, "age_s": 1.0,
                       "held": {HOSTILE: 0.5}}],
        autoscaler={"age_s": 1.0, "name": HOSTILE, "pages": HOSTILE, "outside": 1, "pools": [
            {"pool": HOSTILE, "at_s": 0.0, "desired": 3, "ready": 2, "coming": 0, "leaving": 0, "pending": 0,
             "drivers": [{"signal": "load", "instances": 3, "why": HOSTILE}] * 2, "without": 2, "broken": 0,
             "forecast": None, "drain": [HOSTILE], "resume": [], "stop": []}]},
    )  # fmt: skip
    return [row], told


@asynccontextmanager
async def pages(fleet: list[dict[str, Any]], told: dict[str, Any], name: str = "gpu-0") -> AsyncIterator[str]:
    """Serve these; `name` is in every text of an explanation. Yields the URL."""

    async def read() -> dict[str, Any]:
        return told

    admin = Admin(lambda: b"", lambda: fleet, list, lambda id_: explanation(id_, name), dict, read)
    port = await admin.start(("127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await admin.stop()
