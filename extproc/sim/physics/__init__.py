"""What happens inside an engine, without a clock: batches, KV blocks, steps."""
