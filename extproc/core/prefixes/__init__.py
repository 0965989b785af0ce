"""Which instance holds which part of a prompt: learned from where requests went, or told by engines."""
