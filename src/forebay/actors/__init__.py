"""Actors: asyncio loops that run episodes against environments and generators, without JAX."""
