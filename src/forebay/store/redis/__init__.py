"""The redis engine: a store on a Redis or Valkey server, for processes on several hosts."""

from forebay.store.redis.opening import open_redis, view_redis
from forebay.store.redis.store import RedisStore
from forebay.store.redis.view import RedisView

__all__ = ["RedisStore", "RedisView", "open_redis", "view_redis"]
