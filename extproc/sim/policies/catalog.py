"""All policies by name, what they are in a line, and how one from outside is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from extproc.errors import ConfigError
from extproc.sim.policies.aibrix_prefix import aibrix_prefix
from extproc.sim.policies.aibrix_slo import aibrix_slo
from extproc.sim.policies.cache_aware import cache_aware
from extproc.sim.policies.dynamo_kv import dynamo_kv, dynamo_kv_tuned
from extproc.sim.policies.dynamo_pd import dynamo_pd, dynamo_pd_conditional
from extproc.sim.policies.envoy_limits import envoy_adaptive, envoy_limit
from extproc.sim.policies.gpu_util import gpu_util
from extproc.sim.policies.least_kv import least_kv
from extproc.sim.policies.least_load import least_load
from extproc.sim.policies.llm_d_affinity import llm_d_affinity
from extproc.sim.policies.llm_d_default import llm_d_default
from extproc.sim.policies.llm_d_flow import llm_d_flow, llm_d_flow_24, llm_d_flow_64, llm_d_shed
from extproc.sim.policies.llm_d_pd import llm_d_pd, llm_d_pd_threshold
from extproc.sim.policies.lmetric import lmetric
from extproc.sim.policies.oracle import Oracle
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.ours_admitting import OursAdmitting
from extproc.sim.policies.ours_model_first import AlwaysBest, AlwaysCheapest, ModelFirst
from extproc.sim.policies.ours_paired import AlwaysPaired, never_paired
from extproc.sim.policies.ours_weighted import extproc_weighted
from extproc.sim.policies.peak_ewma import peak_ewma
from extproc.sim.policies.policy import Factory
from extproc.sim.policies.preble import preble
from extproc.sim.policies.prequal import prequal
from extproc.sim.policies.session_hash import session_hash
from extproc.sim.policies.smetric import smetric
from extproc.sim.policies.textbook import least_request, power_of_two, random, round_robin


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy of the catalog.

    `knows_hardware`: the rule has speeds by instance or kind of hardware, given as a profile or learned as a rate,
    and chooses by them. Mere load, latency or queue lengths, which a slow instance lets grow, do not count.
    """

    factory: Factory
    about: str
    knows_hardware: bool = False
    for_pairs: bool = False  # for fleets whose instances share requests; no suite runs it
    for_models: bool = False  # for fleets whose operator lets names stand for models; no suite runs it
    for_overload: bool = False  # holds or refuses: the suite `overload` runs it, the standard one where it is named


CATALOG: dict[str, Entry] = {
    "extproc": Entry(Ours, "ours: constraints, then a cost in seconds", True),
    "extproc_admission": Entry(
        OursAdmitting, "the same; what would not be served well is held, or refused", True, for_overload=True
    ),
    "extproc_weighted": Entry(
        extproc_weighted, "the same; a tenant that floods has three times the weight of others", True, for_overload=True
    ),
    "random": Entry(random, "any instance"),
    "round_robin": Entry(round_robin, "one after the other"),
    "least_request": Entry(least_request, "fewest own requests in flight"),
    "power_of_two": Entry(power_of_two, "fewer in flight of two drawn"),
    "peak_ewma": Entry(peak_ewma, "peak-sensitive latency average times in flight, two draws (Finagle, Linkerd)"),
    "gpu_util": Entry(gpu_util, "lowest reported GPU utilisation, every 5 s"),
    "least_kv": Entry(least_kv, "lowest reported KV usage, every 200 ms"),
    "session_hash": Entry(session_hash, "consistent hash of the session, loads bounded at 1.25 of the average"),
    "cache_aware": Entry(cache_aware, "longest match unless out of balance, else shortest queue (SGLang, vLLM router)"),
    "least_load": Entry(least_load, "time to drain the queued tokens and a KV barrier (SMG)"),
    "llm_d_default": Entry(llm_d_default, "weighted scores of queue, KV usage and prefix (llm-d)"),
    "llm_d_affinity": Entry(llm_d_affinity, "holders of the prompt unless far behind, then token load (llm-d)"),
    "aibrix_prefix": Entry(aibrix_prefix, "longest match that is not overloaded, guard on counts (AIBrix)"),
    "aibrix_slo": Entry(aibrix_slo, "deployment by expected miss of the SLO, then most room (AIBrix)", True),
    "preble": Entry(preble, "exploit long prefixes, else explore by a three-minute load (Preble's E2)", True),
    "dynamo_kv": Entry(dynamo_kv, "prefill and decode blocks by KV events (Dynamo, defaults)"),
    "dynamo_kv_tuned": Entry(dynamo_kv_tuned, "the same with prefill weighed 16 times"),
    "lmetric": Entry(lmetric, "uncached tokens times the batch to join (LMetric)"),
    "prequal": Entry(prequal, "probes: hot-cold rule on requests in flight and latency (Prequal)"),
    "oracle": Entry(Oracle, "no rival: knows caches, queues and the lengths of answers", True),
    "smetric": Entry(smetric, "stay with the session's prefix while the TTFT target holds (SMetric)", True),
    "llm_d_pd": Entry(
        llm_d_pd, "pairs: fewest requests answers, affinity and token load prefills (llm-d)", False, True
    ),
    "llm_d_pd_threshold": Entry(
        llm_d_pd_threshold, "pairs from 512 uncached tokens: prefix and queue for both (llm-d)", False, True
    ),
    "dynamo_pd": Entry(dynamo_pd, "pairs: KV cost prefills, fewest blocks answer (Dynamo)", False, True),
    "dynamo_pd_conditional": Entry(
        dynamo_pd_conditional, "the same, but a decode worker that lacks little does all (Dynamo)", False, True
    ),
    "envoy_limit": Entry(envoy_limit, "least request, 1,024 in flight at most (Envoy)", for_overload=True),
    "envoy_adaptive": Entry(envoy_adaptive, "least request, adaptive concurrency (Envoy)", for_overload=True),
    "llm_d_shed": Entry(llm_d_shed, "its default, sheddable requests refused when saturated", for_overload=True),
    "llm_d_flow": Entry(llm_d_flow, "its default behind flow control, by queue and KV usage", for_overload=True),
    "llm_d_flow_64": Entry(llm_d_flow_64, "the same by requests in flight, tuned for short prompts", for_overload=True),
    "llm_d_flow_24": Entry(llm_d_flow_24, "the same, tuned for long prompts", for_overload=True),
    "always_paired": Entry(AlwaysPaired, "ours, but always the cheapest pair", True, True),
    "never_paired": Entry(never_paired, "ours, but never a pair", True, True),
    "model_first": Entry(ModelFirst, "ours, but the cheapest model that is good enough first", True, for_models=True),
    "always_best": Entry(AlwaysBest, "ours, but always the best model", True, for_models=True),
    "always_cheapest": Entry(AlwaysCheapest, "ours, but always the cheapest model", True, for_models=True),
}

DEFAULTS = ("extproc", "round_robin", "least_request", "cache_aware", "llm_d_default", "dynamo_kv_tuned", "oracle")
"""What is compared where nobody says what to compare."""


def names() -> tuple[str, ...]:
    """Names of all policies, in the order in which they are shown."""
    return tuple(CATALOG)


def comparable() -> tuple[str, ...]:
    """Names of those that are for any fleet, and for loads that it can bear."""
    apart = {name for name, entry in CATALOG.items() if entry.for_pairs or entry.for_models or entry.for_overload}
    return tuple(name for name in CATALOG if name not in apart)


def refusing() -> tuple[str, ...]:
    """Names of those that hold or refuse, ours first; its variant for one scenario apart."""
    return tuple(name for name, entry in CATALOG.items() if entry.for_overload and name != "extproc_weighted")


def overloaded() -> tuple[str, ...]:
    """Names of those that the suite `overload` compares, ours first."""
    return ("extproc", *refusing(), "least_request")


def described() -> tuple[tuple[str, str], ...]:
    """Names of all policies with a line each on what they are."""
    return tuple((name, entry.about) for name, entry in CATALOG.items())


def load(name: str) -> Factory:
    """Factory of a policy: a name of the catalog, or `package.module:factory`.

    Raises ConfigError if there is no such name, it cannot be imported, or what it names is not callable.
    """
    if name in CATALOG:
        return CATALOG[name].factory
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"unknown policy {name!r}: give package.module:factory, or one of {', '.join(CATALOG)}")
    try:
        found: object = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module of a stranger does when it is imported
        reason = " ".join(str(error).split())
        raise ConfigError(f"policy {name!r} cannot be loaded: {type(error).__name__}: {reason}") from error
    if not callable(found):
        raise ConfigError(f"policy {name!r} is not callable: name a function that makes a policy of a Setting")
    return found
