"""Sizing: what was measured, what follows from it, and what a simulation of it says."""
