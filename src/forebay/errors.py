"""Errors that say what is wrong, what was got, what the limit is, and what mends it.

Every error that a user can meet is a `ForebayError`; its class decides the exit code of the command that
meets it: 2 for bad configuration or usage, 3 for no progress, 4 for a peer or service that failed.
"""

from __future__ import annotations

from typing import ClassVar


class ForebayError(Exception):
    """Base of every error that forebay raises on purpose.

    Args:
        what: One clause that names what is wrong.
        got: The offending value, if there is one.
        limit: The limit or the expected value, if there is one.
        remedy: What the user can do; a command or a setting wherever possible.

    Example:
        >>> print(ConfigError("too many groups", got=9, limit=8, remedy="Lower batching.groups."))
        too many groups (got 9, limit 8). Lower batching.groups.
    """

    exit_code: ClassVar[int] = 4

    def __init__(
        self, what: str, *, got: object = None, limit: object = None, remedy: str | None = None
    ) -> None:
        self.what, self.got, self.limit, self.remedy = what, got, limit, remedy
        facts = [f"{name} {value}" for name, value in (("got", got), ("limit", limit)) if value is not None]
        message = what + (f" ({', '.join(facts)})" if facts else "")
        super().__init__(f"{message}. {remedy}" if remedy else message)


def first_cause(error: ForebayError) -> ForebayError:
    """Return the error that came first, where ending because of it failed too.

    What is closed on the way out may fail for the same reason, and would hide it.

    Args:
        error: Raised last.

    Example:
        >>> try:
        ...     try:
        ...         raise StoreError("the disk is full")
        ...     finally:
        ...         raise NoProgressError("the batch producer does not stop")
        ... except ForebayError as error:
        ...     print(first_cause(error))
        the disk is full
    """
    before = error.__context__
    if isinstance(before, ForebayError) and not error.__suppress_context__:
        return first_cause(before)
    return error


class ConfigError(ForebayError):
    """A setting, an option or a combination of them cannot work."""

    exit_code = 2


class ModelError(ConfigError):
    """A model directory is missing, damaged, or uses a feature that is not supported."""


class RunLockedError(ConfigError):
    """Another live process owns the run directory."""


class WireError(ForebayError):
    """Bytes that are not a well-formed frame; `reason` is a short name fit for a counter."""

    def __init__(self, reason: str, what: str, *, got: object = None, limit: object = None) -> None:
        self.reason = reason
        super().__init__(what, got=got, limit=limit)


class RecordError(ForebayError):
    """A record whose parts contradict one another; `reason` is a short name fit for a counter."""

    def __init__(self, reason: str, what: str, *, got: object = None, limit: object = None) -> None:
        self.reason = reason
        super().__init__(what, got=got, limit=limit)


class StalenessError(ForebayError):
    """A sample claims a version that the learner has not made."""


class StoreError(ForebayError):
    """The store cannot do what was asked."""


class StoreVersionError(ConfigError):
    """A store on disk has a format or a run that this program must not touch."""


class DamagedError(StoreError):
    """What the store holds cannot be read back."""


class RefusedError(StoreError):
    """A result that the store will never take; trying again does not help."""


class FencedError(StoreError):
    """A newer incarnation of the learner has taken over the store."""


class CheckpointError(ForebayError):
    """A checkpoint cannot be written, or none can be restored."""


class BucketError(ForebayError):
    """A bucket cannot be reached, so that nothing can be said of what it holds."""


class WeightsError(ForebayError):
    """A published version of the weights is missing, torn or mislabelled."""


class GenerationError(ForebayError):
    """A generator refused or failed a request."""


class EnvironmentFailure(ForebayError):
    """An environment raised, or broke its contract."""


class NonFiniteError(ForebayError):
    """Too many steps had a loss or gradient that is not finite."""


class PeerFailedError(ForebayError):
    """A process or service of the run failed and could not be brought back."""


class NoProgressError(ForebayError):
    """Nothing moved for longer than the configured limit."""

    exit_code = 3
