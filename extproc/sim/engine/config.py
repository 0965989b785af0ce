"""The settings of one simulated engine, checked the way vLLM checks its own at start."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from extproc.core.speeds.profile import KNOWN_HARDWARE
from extproc.errors import UNREADABLE, ConfigError

# KV space of an 80 GB GPU beside an 8B model in BF16, in tokens; a common engine limit for comparisons.
DEFAULT_KV_TOKENS = 467_000
DEFAULT_MAX_MODEL_LEN_TOKENS = 131_072


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What vLLM takes as `--kv-events-config` (vllm/config/kv_events.py)."""

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000  # batches kept for replays
    arrays: bool = False  # the older form of events

    @classmethod
    def parse(cls, text: str, *, arrays: bool = False) -> KvEventsConfig | None:
        """Read the flag's JSON; None if events are off. Raises ConfigError."""
        if not text:
            return None
        try:
            config = msgspec.json.decode(text, type=cls)
        except UNREADABLE as error:
            raise ConfigError(f"--kv-events-config: {error}") from None
        if not config.enable_kv_cache_events or config.publisher == "null":
            return None
        return msgspec.structs.replace(config, arrays=arrays)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What `extproc engine` takes; 0 means "choose" where the comment says so."""

    models: tuple[str, ...]  # names it answers to, all for the same model
    id: str = ""  # "": after its port
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    hardware: str = "h100_sxm"
    tensor_parallel: int = 1
    speed: float = 1.0  # 2.0: twice as fast as the hardware
    kv_blocks: int = 0  # 0: `DEFAULT_KV_TOKENS`
    block_size_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    adapters: tuple[str, ...] = ()  # LoRA adapters that it answers to
    max_loras: int = 1  # of them in one batch
    lora_load_s: float = 0.05  # to bring one into the GPU
    max_model_len_tokens: int = 0  # 0: the model's, or what fits into the KV blocks
    start_delay_s: float = 0.0  # before the port opens
    load_delay_s: float = 0.0  # from there until the model is served
    grace_s: float = 30.0  # for running requests when told to end
    mean_output_tokens: float = 256.0  # of answers to clients that set no limit
    seed: int = 0
    kv_events: KvEventsConfig | None = None  # None: not published

    def __post_init__(self) -> None:
        """Raise ConfigError where the settings contradict each other."""
        if not self.models:
            raise ConfigError("no model is served: give --model at least once")
        for flag, value in (("--speed", self.speed), ("--block-size", self.block_size_tokens)):
            if value <= 0:
                raise ConfigError(f"{flag} must be greater than 0, not {value}")
        if self.max_loras < 1 or self.lora_load_s < 0:
            raise ConfigError(
                f"--max-loras must be at least 1, and is {self.max_loras}; --lora-load-s at least 0, and is "
                f"{self.lora_load_s}"
            )
        if self.hardware not in KNOWN_HARDWARE:
            raise ConfigError(f"hardware {self.hardware!r} has no step times; known: {', '.join(KNOWN_HARDWARE)}")
        if twice := set(self.models) & set(self.adapters):
            raise ConfigError(f"{min(twice)!r} is both a model and a LoRA adapter: name them apart")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ConfigError(
                f"--max-num-seqs ({self.max_num_seqs}) must be at least 1 and not above "
                f"--max-num-batched-tokens ({self.max_num_batched_tokens})"
            )
        if self.usable_blocks < 1 or self.max_model_len_tokens > self.usable_tokens:
            raise ConfigError(
                f"{self.total_blocks} KV blocks hold {max(0, self.usable_tokens)} tokens, less than one request of "
                f"{max(1, self.max_model_len_tokens)}: raise --kv-blocks or lower --max-model-len"
            )

    @property
    def total_blocks(self) -> int:
        """KV blocks, as vLLM reports them in `num_gpu_blocks`."""
        return self.kv_blocks or DEFAULT_KV_TOKENS // self.block_size_tokens

    @property
    def usable_blocks(self) -> int:
        """KV blocks for requests: vLLM keeps one as its null block."""
        return self.total_blocks - 1

    @property
    def usable_tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return self.usable_blocks * self.block_size_tokens

    @property
    def context_tokens(self) -> int:
        """The longest that prompt and output may be together."""
        return self.max_model_len_tokens or min(DEFAULT_MAX_MODEL_LEN_TOKENS, self.usable_tokens)
