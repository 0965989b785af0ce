"""The ext_proc conversation without I/O: one HTTP request, message by message."""
