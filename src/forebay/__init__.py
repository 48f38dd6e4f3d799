"""Asynchronous reinforcement learning for language-model agents, on JAX."""

__version__ = "0.1.0"
