"""A real llama.cpp server with a tiny random model, as a process of its own that can be killed.

python tests/chaos/llamacpp_process.py MODEL.gguf PORT
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main(model: str, port: str) -> None:
    """Serve until told to end."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {"tiny"}
    parameters.n_ctx = 8192
    parameters.n_parallel = 4
    parameters.cpuparams.n_threads = 1  # more would spin while they wait for each other on a busy machine
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = int(port)
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"listening on {server.listening_address}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
