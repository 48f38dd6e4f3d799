"""`forebay fit`: whether a train step fits on chips that nobody has rented yet, and how fast it could be.

`plan`, `memory`, `work`, `roofline` and `search` are arithmetic and never import JAX; `child` compiles the
real programs in a process of its own, and its word counts.
"""
