"""The conformance checks of environments, run in a process of their own; see `forebay.envs.checking`."""
