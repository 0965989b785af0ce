"""`extproc engine`: a simulated inference engine as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

from extproc.commands.numbers import count, port, seconds, seconds_or_zero
from extproc.core.speeds.profile import KNOWN_HARDWARE
from extproc.sim.engine.config import EngineConfig, KvEventsConfig

if TYPE_CHECKING:
    from extproc.sim.engine.server import EngineServer

HELP = "simulated inference engine: speaks the OpenAI API with vLLM's metrics, at the pace of a chosen GPU"
EXAMPLE = "extproc engine --port 8000 --model llama-3.1-8b --hardware h100_sxm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; they are named like vLLM's where vLLM has them."""
    add = parser.add_argument
    add("--id", default="", metavar="NAME", help="name in the line that tells the port (default: engine-PORT)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=port, default=0, help="TCP port, 0 for a free one (default: %(default)s)")
    add(
        "--model",
        action="append",
        metavar="NAME",
        help="name the model is served under; repeat for further names (default: llama-3.1-8b)",
    )
    add(
        "--hardware",
        default="h100_sxm",
        metavar="GPU",
        help=f"GPU whose pace it has: {', '.join(KNOWN_HARDWARE)} (default: %(default)s)",
    )
    add("--tensor-parallel", type=count, default=1, metavar="N", help="number of GPUs (default: %(default)s)")
    add("--speed", type=float, default=1.0, metavar="X", help="2 is twice as fast as the GPU (default: %(default)s)")
    add("--kv-blocks", type=int, default=0, metavar="N", help="KV blocks in all (default: 467000 tokens' worth)")
    add("--block-size", type=int, default=16, metavar="TOKENS", help="tokens of a KV block (default: %(default)s)")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="requests in a batch (default: %(default)s)")
    add(
        "--max-num-batched-tokens",
        type=int,
        default=8192,
        metavar="TOKENS",
        help="tokens computed in one step, prompts and outputs together (default: %(default)s)",
    )
    add(
        "--lora",
        action="append",
        metavar="NAME",
        help="LoRA adapter that it answers to; repeat for further ones (default: none)",
    )
    add("--max-loras", type=int, default=1, metavar="N", help="adapters in one batch (default: %(default)s)")
    add(
        "--lora-load-s",
        type=seconds_or_zero,
        default=0.05,
        metavar="S",
        help="seconds to load an adapter into the GPU, in which the batch stands still (default: %(default)s)",
    )
    add(
        "--max-model-len",
        type=int,
        default=0,
        metavar="TOKENS",
        help="prompt and output of a request together (default: 131072, or what the KV blocks hold)",
    )
    add(
        "--start-delay-s",
        type=seconds_or_zero,
        default=0.0,
        metavar="S",
        help="seconds before the port opens (default: %(default)s)",
    )
    add(
        "--load-delay-s",
        type=seconds_or_zero,
        default=0.0,
        metavar="S",
        help="seconds from there until the model is served; /health is 503 meanwhile (default: %(default)s)",
    )
    add(
        "--grace-s",
        type=seconds_or_zero,
        default=30.0,
        metavar="S",
        help="seconds that running requests have to end after SIGTERM (default: %(default)s)",
    )
    add(
        "--mean-output-tokens",
        type=seconds,
        default=256.0,
        metavar="TOKENS",
        help="mean length of answers to requests without max_tokens (default: %(default)s)",
    )
    add(
        "--kv-events-config",
        default="",
        metavar="JSON",
        help="publish KV events as vLLM does, with its keys: endpoint, replay_endpoint, topic, buffer_steps",
    )
    add("--kv-events-arrays", action="store_true", help="publish them in the form of vLLM before 0.30 and SGLang")
    add("--seed", type=int, default=0, help="seed of answers and their lengths (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM (running requests may end) or Ctrl-C (at once)."""
    config = EngineConfig(
        id=args.id,
        host=args.host,
        port=args.port,
        models=tuple(args.model or ("llama-3.1-8b",)),
        hardware=args.hardware,
        tensor_parallel=args.tensor_parallel,
        speed=args.speed,
        kv_blocks=args.kv_blocks,
        block_size_tokens=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        adapters=tuple(args.lora or ()),
        max_loras=args.max_loras,
        lora_load_s=args.lora_load_s,
        max_model_len_tokens=args.max_model_len,
        start_delay_s=args.start_delay_s,
        load_delay_s=args.load_delay_s,
        grace_s=args.grace_s,
        mean_output_tokens=args.mean_output_tokens,
        seed=args.seed,
        kv_events=KvEventsConfig.parse(args.kv_events_config, arrays=args.kv_events_arrays),
    )
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))
    return 0


async def _serve(config: EngineConfig) -> None:
    from extproc.sim.engine.server import open_engine

    stop, interrupt = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def on_interrupt() -> None:
        stop.set()
        interrupt.set()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), config.start_delay_s)
    if stop.is_set():
        return
    async with open_engine(config) as (server, port):
        print(f"engine {config.id or f'engine-{port}'} listening on {config.host}:{port}", flush=True)
        await stop.wait()
        watcher = asyncio.create_task(_cut_off(server, interrupt))
    watcher.cancel()


async def _cut_off(server: EngineServer, interrupt: asyncio.Event) -> None:
    """Ctrl-C, also one that comes while the engine drains, does not wait for running requests."""
    await interrupt.wait()
    server.cut_off()
