"""One simulated engine in real time: a server that speaks as vLLM does (`extproc engine`)."""
