"""Tests of what the front ends share."""
