"""A real vLLM on the CPU, as a process of its own; it tells its KV events and serves a model without weights."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from extproc.adapters.kv_events import KvEventsSettings
from extproc.demo.ports import free_port
from tests.vllm.model import MAX_MODEL_LEN_TOKENS, write_model

MODEL = "tiny"
BLOCK_SIZE_TOKENS = 32
KV_BLOCKS = 96  # few, so that blocks are evicted all the time
_READY_WITHIN_S = 600.0  # a start takes half a minute; this only ends a test whose engine hangs
_QUIT_WITHIN_S = 30.0
_ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # serves /reset_prefix_cache
}


class VllmEngine:
    """One API server on free ports of 127.0.0.1."""

    def __init__(self, python: str, folder: Path) -> None:
        self.model_folder = folder / "model"
        write_model(self.model_folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        events, replay = free_port(), free_port()
        self.kv_events = KvEventsSettings(
            endpoint=f"tcp://127.0.0.1:{events}", replay_endpoint=f"tcp://127.0.0.1:{replay}", batch_s=0.0
        )
        told = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://127.0.0.1:{replay}",
            "topic": f"kv@{MODEL}",
        }
        self._command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model_folder)]
        self._command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2]]
        self._command += ["--load-format", "dummy", "--dtype", "float32", "--enforce-eager"]
        self._command += ["--max-model-len", str(MAX_MODEL_LEN_TOKENS), "--block-size", str(BLOCK_SIZE_TOKENS)]
        self._command += ["--num-gpu-blocks-override", str(KV_BLOCKS), "--enable-prompt-tokens-details"]
        self._command += ["--trust-request-chat-template"]
        self._command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        self._command += ["--kv-events-config", json.dumps(told)]
        self._folder = folder
        self._log = folder / "vllm.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it is healthy."""
        # Without our PYTHONPATH: the tree has folders that are named as libraries are.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _ENVIRONMENT
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self._is_healthy():
            ended = self._process.poll()
            assert ended is None, f"vLLM ended with {ended}:\n{self._log.read_text(errors='replace')[-4000:]}"
            assert time.monotonic() < deadline, f"vLLM is not healthy:\n{self._log.read_text(errors='replace')[-4000:]}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End it with its engine process, which is a child of its own."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_QUIT_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
