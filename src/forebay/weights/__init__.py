"""Weights: versioned directories, published atomically, never torn and never deleted under a reader."""
