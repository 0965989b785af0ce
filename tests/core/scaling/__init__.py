"""Tests of the autoscaler's core."""
