"""Overviews of several workers as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from extproc.addresses import UnixSocket
from extproc.observe.dashboard.merged import merged_overview
from extproc.server.admin import Admin
from extproc.server.worker_pages import WorkerPages


def overview(**changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "version": "1", "fleet": "f", "uptime_s": 10.0, "degraded": [], "redis_silence_s": 0.1,
        "peers": {"routers": 2, "requests": 3}, "in_flight": 2, "admission": True,
        "held": {"held": 1, "by_class": {"batch": 1}, "by_tenant": {"": 1}, "longest_s": 2.0},
        "rates": {"routed_per_s": 4.0, "finished_per_s": 4.0, "ttft_s": 0.1, "predicted_ttft_s": 0.1,
                  "cached_share": None, "reply_s": 0.002},
        "curves": {"routed": [None, 4], "ttft_s": [None, 0.1]},
        "decisions": [{"id": "1", "age_s": 1.0}, {"id": "2", "age_s": 3.0}], "calibration": [], "hits": [],
        "hot_prefixes": [], "autoscaler": None,
    }  # fmt: skip
    return told | changes


def test_counts_are_summed_and_means_weighed_by_requests() -> None:
    """A worker with three times the requests counts three times; what nobody knows stays unknown."""
    busy = {"routed_per_s": 12.0, "finished_per_s": 12.0, "ttft_s": 0.5, "reply_s": 0.006}
    merged = merged_overview(
        [overview(), overview(rates=overview()["rates"] | busy, curves={"routed": [3, 12], "ttft_s": [0.2, 0.5]})]
    )
    assert merged["rates"]["routed_per_s"] == 16.0
    assert round(merged["rates"]["ttft_s"], 6) == 0.4
    assert merged["rates"]["cached_share"] is None
    assert merged["curves"]["routed"] == [3, 16]
    assert [round(value, 6) for value in merged["curves"]["ttft_s"]] == [0.2, 0.4]
    assert (merged["workers"], merged["held"]["held"], merged["held"]["by_class"]) == (2, 2, {"batch": 2})


def test_siblings_are_no_other_routers() -> None:
    """Each of two workers hears two routers: the other worker, and one elsewhere that has one request."""
    merged = merged_overview([overview(), overview(peers={"routers": 2, "requests": 3}, in_flight=2)])
    assert (merged["peers"], merged["in_flight"]) == ({"routers": 1, "requests": 1}, 4)


def test_the_worst_of_what_each_sees_is_told() -> None:
    """One that has never heard Redis counts more than one that has."""
    rung = {"rung": "redis_stale", "detail": "x"}
    merged = merged_overview([overview(), overview(redis_silence_s=None, degraded=[rung]), overview(degraded=[rung])])
    assert (merged["redis_silence_s"], merged["degraded"]) == (None, [rung])


def test_lists_are_put_together_by_age_and_by_place() -> None:
    """The newest decisions of all; hits of one instance and model are one row; holders of a prefix are all of them."""
    hit = {"instance": "a", "model": "m", "requests": 1, "prompt_tokens": 10, "believed_tokens": 5,
           "checked_tokens": 10, "cached_tokens": 4}  # fmt: skip
    hot = {"id": "p", "lately": 2.0, "age_s": 3.0, "held": {"a": 0.5}}
    merged = merged_overview(
        [
            overview(hits=[hit], hot_prefixes=[hot], autoscaler={"age_s": 9.0}),
            overview(
                decisions=[{"id": "3", "age_s": 2.0}],
                hits=[hit, hit | {"model": "n"}],
                hot_prefixes=[hot | {"age_s": 1.0, "held": {"a": 1.0, "b": 0.5}}],
                autoscaler={"age_s": 2.0},
            ),
        ]
    )
    assert [each["id"] for each in merged["decisions"]] == ["1", "3", "2"]
    assert [(each["model"], each["requests"], each["cached_tokens"]) for each in merged["hits"]] == [
        ("m", 2, 8),
        ("n", 1, 4),
    ]
    assert merged["hot_prefixes"] == [{"id": "p", "lately": 4.0, "age_s": 1.0, "held": {"a": 1.0, "b": 0.5}}]
    assert merged["autoscaler"] == {"age_s": 2.0}


@dataclass
class Worker:
    """One as its parent knows it."""

    number: int
    pages: Path
    restarts: int = 0


async def test_the_parent_of_workers_has_the_dashboard_over_all_of_them(tmp_path: Path) -> None:
    """Page and files with their headers, the overviews put together, rates of instances summed."""

    async def told() -> dict[str, Any]:
        return overview()

    workers = [Worker(number, tmp_path / str(number)) for number in range(2)]
    fleet = [{"id": "a", "in_flight": 1, "peers": 1, "cooldown_s": 0.0, "routed_per_s": 2.5}]
    admins = [Admin(lambda: b"", lambda: fleet, list, lambda _: None, dict, told) for _ in workers]
    for admin, worker in zip(admins, workers, strict=True):
        await admin.start(UnixSocket(worker.pages))
    async with WorkerPages(workers) as parent, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{await parent.start(('127.0.0.1', 0))}"
        async with session.get(f"{url}/overview") as answer:
            assert (await answer.json())["workers"] == 2
        async with session.get(f"{url}/fleet") as answer:
            assert (await answer.json())[0]["routed_per_s"] == 5.0
        for path, kind in (("/", "text/html"), ("/dashboard/page.js", "text/javascript")):
            async with session.get(url + path) as answer:
                assert (answer.content_type, "content-security-policy" in answer.headers) == (kind, True)
    for admin in admins:
        await admin.stop()
