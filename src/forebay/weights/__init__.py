"""Weights: versioned directories, published atomically."""
