"""The actor pool: runs episodes, many at once, between the store and the generators; knows no JAX."""
