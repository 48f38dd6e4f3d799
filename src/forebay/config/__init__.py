"""One strict configuration for a run: TOML, `extends`, `key=value` overrides; errors point at the line."""

from forebay.config.run import RunConfig, RunSettings, load_config, stored_config
from forebay.config.source import ConfigSource

__all__ = ["ConfigSource", "RunConfig", "RunSettings", "load_config", "stored_config"]
