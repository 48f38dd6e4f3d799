"""Environments: what an agent acts in, their tasks and their delays."""
