"""One strict configuration for a run: TOML files, `extends`, `key=value` overrides, and errors that point at the line."""

from forebay.config.run import RunConfig, RunSettings, load_config
from forebay.config.source import ConfigSource

__all__ = ["ConfigSource", "RunConfig", "RunSettings", "load_config"]
