"""Parts of `benchmarks/learner.py`: what a training step does, how fast it is, and what the loop adds."""
