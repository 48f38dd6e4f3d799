"""Models: decoder-only transformers as pure functions over a pytree."""
