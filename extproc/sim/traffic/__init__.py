"""What clients send: public traces, an operator's own logs, made-up workloads."""
