"""What a worker says to its parent: a line through its stdout that begins with one of these words."""

SERVES = "serves"  # then its port, 0 of a socket
CANNOT = "cannot"  # then the reason
