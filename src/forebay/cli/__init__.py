"""The command line: one binary for every role."""
