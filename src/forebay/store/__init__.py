"""The store: a durable buffer that loses nothing and repeats nothing."""
