"""A day of all classes: chat, retrieval, long documents and batch jobs of three tenants, with bursts."""

from __future__ import annotations

from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.batch import batch
from extproc.sim.traffic.chat import chat
from extproc.sim.traffic.day import in_days
from extproc.sim.traffic.documents import documents
from extproc.sim.traffic.mix import mix
from extproc.sim.traffic.rag import rag
from extproc.sim.traffic.scale import at_rate

TENANTS = ("shop", "bank", "press")
CHAT_SHARE = 0.50
RAG_SHARE = 0.25
DOCUMENTS_SHARE = 0.05
BATCH_SHARE = 0.20
CHAT_THINK_S = 10.0  # quick people: a day that lasts minutes shall have several turns of each
_SPARE = 1.05  # more requests of each part than its share, since the mix rounds


def mixed_day(requests: int = 2000, seed: int = 0, requests_s: float = 10.0) -> Traffic:
    """`requests` at `requests_s` a second on the average; the whole of them is one day, however short.

    For more load ask for more `requests_s`, which are more people.
    Every tenant has requests of every class, and the bank alone has no batch jobs.
    """
    people = chat(
        _some(requests, CHAT_SHARE),
        seed,
        requests_s * CHAT_SHARE,
        apps=6,
        think_s=CHAT_THINK_S,
        tenants=TENANTS,
    )
    searches = rag(_some(requests, RAG_SHARE), seed, requests_s * RAG_SHARE, tenants=TENANTS)
    readers = documents(_some(requests, DOCUMENTS_SHARE), seed, requests_s * DOCUMENTS_SHARE, tenants=TENANTS)
    jobs = batch(_some(requests, BATCH_SHARE), seed, requests_s * BATCH_SHARE, tenants=("shop", "press"))
    parts = [(people, CHAT_SHARE), (searches, RAG_SHARE), (readers, DOCUMENTS_SHARE), (jobs, BATCH_SHARE)]
    return in_days(at_rate(mix("day", parts, requests), requests_s), seed)


def _some(requests: int, share: float) -> int:
    return int(requests * share * _SPARE) + 2
