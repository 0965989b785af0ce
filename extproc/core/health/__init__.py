"""Which instances are to be left alone for a while, asked last, or brought in gently."""
