"""Batching: settled groups become packed rows of a few fixed shapes."""
