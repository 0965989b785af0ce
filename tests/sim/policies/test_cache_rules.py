"""Rules that know of caches, each against an answer that follows from its published text by hand."""

from __future__ import annotations

import pytest

from extproc.core.values.instance import Load
from extproc.sim.fleet.spec import InstanceSpec
from extproc.sim.policies.catalog import load
from extproc.sim.policies.policy import Ending
from extproc.sim.policies.smetric import work
from tests.sim.policies.counter import BLOCK_TOKENS, OVER, ask, busy, instance, picks, publish, send, setting

TEN = tuple(range(1, 11))  # a prompt of 640 tokens


def made(name, loads=None, **options):
    """A policy that knows three idle instances, or those given."""
    policy = load(name)(setting(**options))
    publish(policy, loads or {key: Load(running=0, waiting=0, kv_usage=0.0) for key in "abc"})
    return policy


def warm(policy, name, blocks, now=0.0):
    """Let an instance serve a prompt to its end."""
    request = ask(f"warm {name} {blocks}", len(blocks) * BLOCK_TOKENS, blocks)
    send(policy, name, request, now)
    policy.first_token(request, name, now)
    policy.ended(request, name, OVER, now)


@pytest.mark.parametrize(
    ("held", "in_flight", "expected"),
    [
        (4, {"b": 10}, "b"),  # 40 % matched, balanced
        (3, {"b": 10}, "a"),  # 30 % is not above the threshold: the first of the least loaded
        (10, {"b": 65}, "a"),  # 65 - 0 > 64 and 65 > 1.5 x 0: out of balance
        (10, {"b": 64}, "b"),  # 64 is not above 64
        (10, {"a": 140, "b": 205, "c": 140}, "b"),  # 65 apart, but 205 < 1.5 x 140
    ],
)
def test_cache_aware(held, in_flight, expected):
    """The match above 0.3 wins unless max - min > 64 and max > 1.5 min."""
    policy = made("cache_aware")
    warm(policy, "b", TEN[:held])
    busy(policy, in_flight)
    assert policy.choose(ask("r", 640, TEN), 0.0) == expected


@pytest.mark.parametrize(
    ("loads", "held", "expected"),
    [
        # a: 2 + 2 + 0 = 4, b: 0 + 2 + 3 = 5
        ({"a": Load(waiting=0, kv_usage=0.0), "b": Load(waiting=9, kv_usage=0.0)}, 10, "b"),
        # a: 2 + 2 + 0 = 4, b: 0 + 2 + 1.8 = 3.8
        ({"a": Load(waiting=0, kv_usage=0.0), "b": Load(waiting=9, kv_usage=0.0)}, 6, "a"),
        # a: 2 + 2 + 0 = 4, b: 2 + 0.4 + 1.5 = 3.9: equal queues score 1 each
        ({"a": Load(waiting=5, kv_usage=0.0), "b": Load(waiting=5, kv_usage=0.8)}, 5, "a"),
        # a: 2 + 2 + 0 = 4, b: 2 + 0.4 + 1.8 = 4.2
        ({"a": Load(waiting=5, kv_usage=0.0), "b": Load(waiting=5, kv_usage=0.8)}, 6, "b"),
        # a metric that is missing reads 0: a: 2 + 2 = 4, b: 0 + 1.8 + 1.8 = 3.6
        ({"a": Load(), "b": Load(waiting=1, kv_usage=0.1)}, 6, "a"),
    ],
)
def test_llm_d_default(loads, held, expected):
    """Queue x 2 + (1 - KV) x 2 + matched x 3, the highest wins."""
    policy = made("llm_d_default", loads)
    warm(policy, "b", TEN[:held])
    assert policy.choose(ask("r", 640, TEN), 0.0) == expected


@pytest.mark.parametrize(
    ("held", "ahead_tokens", "expected"),
    [
        (8, 64_000, "b"),  # sticky at 0.80; 4 s behind
        (7, 64_000, "a"),  # 0.70 is not sticky, and a has nothing to do
        (10, 286_080, "b"),  # 17.96 s behind
        (10, 287_360, "a"),  # 18.04 s behind: the load decides
    ],
)
def test_llm_d_affinity(held, ahead_tokens, expected):
    """Holders of 0.80 keep it unless their tokens / 15,928 tokens/s are 18 s above the others'."""
    policy = made("llm_d_affinity", {"a": Load(), "b": Load()})
    warm(policy, "b", TEN[:held])
    busy(policy, {"b": 1}, tokens=ahead_tokens)
    assert policy.choose(ask("r", 640, TEN), 0.0) == expected


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        ({"a": 1, "b": 2, "c": 3}, "b"),  # b and c hold all of it: fewer requests
        ({"a": 0, "b": 6, "c": 5}, "c"),  # c within mean 3.67 + deviation 2.62
        ({"a": 0, "b": 8, "c": 7}, "c"),  # 8 - 0 is not above 8
        ({"a": 0, "b": 9, "c": 9}, "a"),  # 9 - 0 > 8: only the emptiest are matched
    ],
)
def test_aibrix_prefix(in_flight, expected):
    """The longest match of the fewest requests within mean + deviation; above a spread of 8 the emptiest."""
    policy = made("aibrix_prefix")
    for name in "bc":
        warm(policy, name, TEN)
    busy(policy, in_flight)
    assert policy.choose(ask("r", 640, TEN), 0.0) == expected


def test_aibrix_prefix_skips_the_longest_match_where_it_is_overloaded():
    """b is above mean 2.67 + deviation 3.09: the shorter match at c takes it."""
    policy = made("aibrix_prefix")
    warm(policy, "b", TEN)
    warm(policy, "c", TEN[:2])
    busy(policy, {"a": 0, "b": 7, "c": 1})
    assert policy.choose(ask("r", 640, TEN), 0.0) == "c"


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        ({"a": 0, "b": 3}, "b"),  # 640 x 1 against 128 x 4 = 512
        ({"a": 0, "b": 5}, "a"),  # 640 x 1 against 128 x 6 = 768
        ({"a": 0, "b": 4}, "a"),  # 640 both: the fewer in flight
    ],
)
def test_lmetric(in_flight, expected):
    """Uncached tokens times (in flight + 1); b holds eight of ten blocks."""
    policy = made("lmetric", {"a": Load(), "b": Load()})
    warm(policy, "b", TEN[:8])
    busy(policy, in_flight)
    assert policy.choose(ask("r", 640, TEN), 0.0) == expected


def dynamo(name="dynamo_kv", stored=()):
    """Two instances; b has cached some blocks, as its engine tells."""
    policy = made(name, {"a": Load(), "b": Load()})
    policy.cache_changed("b", stored, (), 0.0)
    return policy


@pytest.mark.parametrize(
    ("name", "decoding_tokens", "expected"),
    [
        # r: a = 40 prefill + 40 decode = 80; b = 40 - 32 hit + (busy blocks) + 40
        ("dynamo_kv", 480, "b"),  # 8 + 30 + 40 = 78
        ("dynamo_kv", 560, "a"),  # 8 + 35 + 40 = 83
        ("dynamo_kv_tuned", 560, "b"),  # 16 x 40 + 40 = 680 against 16 x 8 + 35 + 40 = 203
        ("dynamo_kv_tuned", 8320, "a"),  # against 128 + 520 + 40 = 688
    ],
)
def test_dynamo_weighs_prefill_against_decode_blocks(name, decoding_tokens, expected):
    """Costs are in blocks of 16 tokens; what has begun to answer is decode alone."""
    policy = dynamo(name, TEN[:8])
    decoding = ask("decoding", decoding_tokens)
    send(policy, "b", decoding)
    policy.first_token(decoding, "b", 0.1)
    assert policy.choose(ask("r", 640, TEN), 0.2) == expected


def test_dynamo_counts_prefill_until_the_first_token():
    """The same request weighs twice, as prefill and as decode, until it answers."""
    policy = dynamo(stored=TEN)
    ahead = ask("ahead", 320)  # 20 blocks
    send(policy, "b", ahead)
    # a = 40 + 40 = 80; b = 40 + 20 - 40 + 20 + 40 = 80: either
    assert picks(_dynamo_tie) == {"a", "b"}
    policy.first_token(ahead, "b", 0.1)
    assert policy.choose(ask("r", 640, TEN), 0.2) == "b"  # 0 + 20 + 40 = 60


def _dynamo_tie(seed):
    policy = made("dynamo_kv", {"a": Load(), "b": Load()}, seed=seed)
    policy.cache_changed("b", TEN, (), 0.0)
    send(policy, "b", ask("ahead", 320))
    return policy.choose(ask("r", 640, TEN), 0.0)


def test_dynamo_counts_a_shared_block_once_and_forgets_it_with_its_last_request():
    """Two requests of the same ten blocks hold ten; after both nothing is held."""
    policy = dynamo()
    rule, seen = policy._rule, policy.seen["a"]
    first, second = ask("first", 650, TEN), ask("second", 640, TEN)
    send(policy, "a", first)
    send(policy, "a", second)
    assert rule.active_tokens(seen) == 640  # ten tokens more are no full block
    policy.ended(first, "a", OVER, 1.0)
    assert rule.active_tokens(seen) == 640
    policy.ended(second, "a", OVER, 1.0)
    assert rule.active_tokens(seen) == 0


def test_dynamo_counts_no_new_decode_blocks_for_what_active_requests_hold():
    """Both decode 40 blocks; those at b are the prompt's own: a = 40 + 40 + 40 = 120, b = 40 + 40 + 0 = 80."""
    policy = dynamo()
    for name, blocks in (("a", tuple(range(50, 60))), ("b", TEN)):
        decoding = ask(f"at {name}", 640, blocks)
        send(policy, name, decoding)
        policy.first_token(decoding, name, 0.1)
    assert policy.choose(ask("r", 640, TEN), 0.2) == "b"


def test_dynamo_believes_the_engines_events_and_not_its_own_choices():
    """A prompt that was sent to b but evicted there counts as uncached."""
    policy = dynamo(stored=TEN)
    policy.cache_changed("b", (), TEN, 0.5)
    policy.choose(ask("r", 640, TEN), 1.0)
    assert policy.seen["b"].hit_tokens == 0


def test_smetric_work_is_linear_and_quadratic():
    """All of 30,518 tokens missing: n + n x n/2 / n = 1.5 n."""
    assert work(30_518, 0) == pytest.approx(45_777)
    assert work(30_518, 30_518) == 0


def _smetric(rate=None):
    """a and b have taught their rate in eight requests each; a session's first turn is at b."""
    policy = made("smetric", {"a": Load(), "b": Load()})
    for name in "ab" if rate else "":
        for turn in range(8):
            request = ask(f"{name} teaches {turn}", 640)
            send(policy, name, request, 0.0)
            policy.first_token(request, name, work(640, 0) / rate)
            policy.ended(request, name, OVER, 9.0)
    first = ask("first turn", 640, TEN, session="s")
    send(policy, "b", first, 10.0)
    policy.first_token(first, "b", 10.1)
    policy.ended(first, "b", OVER, 11.0)
    return policy


@pytest.mark.parametrize(
    ("rate", "queued_tokens", "expected"),
    [
        (None, 64_000, "b"),  # nobody has a rate yet: it meets the target
        (2000.0, 640, "b"),  # some 700 of work at 2,000 a second, target 1.05 s
        (2000.0, 3200, "a"),  # over 3,200 take more than 1.6 s; a meets the target
    ],
)
def test_smetric_keeps_a_session_while_its_instance_meets_the_target(rate, queued_tokens, expected):
    """A follow-up of 704 tokens, 640 of which b holds."""
    policy = _smetric(rate)
    send(policy, "b", ask("queued", queued_tokens), 11.0)
    assert policy.choose(ask("second turn", 704, (*TEN, 11), session="s"), 11.0) == expected


def test_smetric_does_not_keep_a_first_turn():
    """A new session that shares a prompt goes by work times requests: a has none."""
    policy = _smetric()
    busy(policy, {"b": 1}, now=11.0)
    assert policy.choose(ask("other", 640, TEN, session="another"), 11.0) == "a"


def test_preble_exploits_a_long_prefix_and_explores_with_a_short_one():
    """Six of ten blocks cached: the holder, whatever it has to do; four of ten: the cheaper one."""
    policy = made("preble", {"a": Load(), "b": Load()})
    warm(policy, "b", TEN[:6])
    busy(policy, {"b": 3})
    assert policy.choose(ask("long", 640, TEN), 0.0) == "b"
    assert policy.choose(ask("short", 640, (*TEN[:4], 21, 22, 23, 24, 25, 26)), 0.0) == "a"


def test_preble_prefers_the_cheaper_of_two_holders():
    """Both hold the prompt; a has requests to decode."""
    policy = made("preble", {"a": Load(), "b": Load()})
    for name in "ab":
        warm(policy, name, TEN)
    busy(policy, {"a": 2})
    assert policy.choose(ask("r", 640, TEN), 0.0) == "b"


def test_preble_counts_answers_that_are_being_made():
    """Equal prompts, but a still answers: 45 tokens of 0.15 s, what is assumed until an instance has answered."""
    policy = made("preble", {"a": Load(), "b": Load()})
    policy.choose(ask("none", 30), 0.0)
    rule, (a, b) = policy._rule, list(policy.seen.values())[:2]
    before_s = rule.cost_s(a, 0) - rule.cost_s(b, 0)
    send(policy, "a", ask("without blocks", 63))
    assert rule.cost_s(a, 0) - rule.cost_s(b, 0) - before_s == pytest.approx(45 * 0.15)


def test_preble_forgets_load_after_three_minutes():
    """What b computed weighs until then; afterwards a, which computed less later, is the dearer one."""
    policy = made("preble", {"a": Load(), "b": Load()})
    warm(policy, "b", tuple(range(100, 200)), 0.0)
    warm(policy, "a", tuple(range(200, 210)), 100.0)
    early = ask("early")
    assert policy.choose(early, 100.0) == "a"
    policy.ended(early, "a", OVER, 101.0)
    assert policy.choose(ask("late"), 181.0) == "b"


def test_preble_counts_what_a_prompt_would_throw_out():
    """Both did the same work; only a has room left."""
    policy = load("preble")(setting())
    policy.published(instance("a", kv_blocks=4000), 0.0, 0.0)
    policy.published(instance("b", kv_blocks=400), 0.0, 0.0)  # 6,400 tokens: a hundred blocks of ours
    warm(policy, "a", tuple(range(1000, 1095)))
    warm(policy, "b", tuple(range(2000, 2095)))
    rule, (a, b) = policy._rule, policy.seen.values()
    assert rule.cost_s(a, 10) == pytest.approx(rule.cost_s(a, 0))
    assert rule.cost_s(b, 10) > rule.cost_s(a, 10)


def test_preble_moves_prefixes_from_an_instance_that_costs_too_much():
    """Two prefixes at b, none at a: one of them is given to a, and its next prompt goes there."""
    policy = made("preble", {"a": Load(), "b": Load()})
    warm(policy, "a", (7,))
    prompts = [tuple(range(start, start + 10)) for start in (1000, 2000)]
    for turn in range(60):
        for blocks in prompts:
            warm(policy, "b", (*blocks, 9000 + turn), 0.0)
    warm(policy, "a", (8,), 2.0)  # the next look at the balance
    places = {policy.choose(ask(f"r{at}", 704, (*blocks, 8000 + at)), 2.0) for at, blocks in enumerate(prompts)}
    assert places == {"a", "b"}


def _slo(hardware_of, **limits):
    """AIBrix's slo rule over instances of the given hardware."""
    specs = {name: InstanceSpec(id=name, models=("model",), hardware=hw, **limits) for name, hw in hardware_of.items()}
    policy = load("aibrix_slo")(setting(specs=specs))
    for name, hardware in hardware_of.items():
        policy.published(instance(name, hardware=hardware), 0.0, 0.0)
    return policy


def test_aibrix_slo_takes_the_deployment_that_misses_least():
    """A prompt of 64,000 tokens takes an L40S 10 s and an H100 3 s: the H100 is furthest from a miss."""
    policy = _slo({"slow": "l40s", "fast": "h100_sxm"})
    busy(policy, {"fast": 1}, tokens=64_000)
    assert policy.choose(ask("r", 64_000), 0.0) == "fast"


def test_aibrix_slo_ranks_deployments_that_all_keep_the_target():
    """With short prompts the H100 at its 256 sequences is far below the target, the L40S at its limit."""
    assert _slo({"slow": "l40s", "fast": "h100_sxm"}).choose(ask("r", 64), 0.0) == "fast"


def test_aibrix_slo_takes_the_least_utilised_of_a_deployment():
    """Consumption and not the number of requests: one of 32,000 tokens outweighs two of 64."""
    policy = _slo({"a": "h100_sxm", "b": "h100_sxm"})
    busy(policy, {"a": 1}, tokens=32_000)
    busy(policy, {"b": 2}, tokens=64)
    assert policy.choose(ask("r"), 0.0) == "b"


def test_aibrix_slo_learns_how_long_answers_get():
    """Ten tokens and thirty of prompts alike make twenty; other prompts keep the first guess."""
    policy = _slo({"a": "h100_sxm"})
    rule = policy._rule
    for name, tokens in (("x", 10), ("y", 30)):
        request = ask(name)
        policy.choose(request, 0.0)
        policy.ended(request, "a", Ending(200, 0.1, 1.0, tokens, None), 1.0)
    assert rule.output_tokens(ask("z")) == 20
    assert rule.output_tokens(ask("longer", 6400)) == 128


@pytest.mark.parametrize(("at_once", "steps"), [(1, 128), (64, 128), (256, 256 * (4096 + 128) / 8192)])
def test_aibrix_slo_measures_all_that_a_step_takes(at_once, steps):
    """One step a token of the answer, or as many as the prompts fill; each with 4 ms beside the kernels' time."""
    (lean,) = _slo({"a": "h100_sxm"})._rule._deployments.values()
    (real,) = _slo({"a": "h100_sxm"}, step_overhead_s=0.004)._rule._deployments.values()
    more_s = real.latency_s(4096, 128, at_once) - lean.latency_s(4096, 128, at_once)
    assert more_s == pytest.approx(0.004 * steps)


def test_preble_measures_all_that_a_step_takes():
    """A prompt of two steps' tokens costs two steps' overhead and the fixed time of the second."""
    spec = InstanceSpec(id="a", models=("model",), step_overhead_s=0.004, max_num_batched_tokens=640)
    policy = load("preble")(setting(specs={"a": spec}))
    publish(policy, {"a": Load()})
    send(policy, "a", ask("r", 1280))
    machine = policy._rule._machines[0]
    profile = spec.profile()
    assert machine.prefill_s(1280, 64) == pytest.approx(profile.prefill_s(1280, 64) + 0.008 + profile.a_ms * 1e-3)
    assert machine.prefill_s(640, 0) == pytest.approx(profile.prefill_s(640, 0) + 0.004)
