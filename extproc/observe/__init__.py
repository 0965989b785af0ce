"""What the service tells about itself: functions of Decision and Outcome."""
