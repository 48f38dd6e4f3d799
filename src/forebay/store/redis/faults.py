"""What a server's errors mean, and what mends them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigError, DamagedError, ForebayError, StoreError
from forebay.store.address import Address

if TYPE_CHECKING:
    from redis.exceptions import ResponseError

# A server that is starting, or about to become a primary, or has lost its replicas for the moment.
_PASSING: Final = {
    "LOADING": ("is loading its files", "Wait, or raise store.deadline_s."),
    "READONLY": (
        "is a replica and takes no writes",
        "Let store.url name the primary; after a fail-over, the new one.",
    ),
    "MASTERDOWN": (
        "is a replica that has lost its primary",
        "Bring the primary back, or let a replica take over.",
    ),
    "BUSY": (
        "is kept busy by somebody else's script",
        "Run: redis-cli SCRIPT KILL, and give the store a server of its own.",
    ),
    "NOREPLICAS": (
        "has fewer replicas than its min-replicas-to-write asks for",
        "Bring the replicas back; the call is safe to repeat.",
    ),
    "CLUSTERDOWN": (
        "is one of a cluster that is down",
        "Run: redis-cli --cluster check HOST:PORT; the call is safe to repeat.",
    ),
}
_MOVING: Final = (
    "is one of a cluster that is moving the run's slot to another node",
    "Wait until it is there; the call is safe to repeat.",
)
_PASSING_OF_A_CLUSTER: Final = ("MOVED", "ASK", "TRYAGAIN")
_AUTHENTICATION: Final = ("NOAUTH", "WRONGPASS", "invalid username-password", "Client sent AUTH")
# What a primary that has become a replica says to WAIT.
_DEMOTED: Final = ("WAIT cannot be used with replica", "WAITAOF cannot be used with replica")
# As Redis 7.0 says it, and as Redis 7.2 and Valkey do.
_NOT_ALLOWED_TO_SCRIPT: Final = ("The user executing the script can", "ACL failure in script")
_ACCESS_LIST: Final = "Give the user the commands and keys that docs/how-to/redis.md lists."


def code_of(error: Exception) -> str:
    """Return an error's code: its first word, which redis-py keeps apart where it knows it."""
    return getattr(error, "status_code", None) or str(error).partition(" ")[0]


def is_passing(error: ResponseError) -> bool:
    """Return whether the same call may succeed in a moment."""
    return code_of(error) in (*_PASSING, *_PASSING_OF_A_CLUSTER) or str(error).startswith(_DEMOTED)


def damaged(said: str, address: Address) -> DamagedError:
    """Return the error of a record that is not as it was written.

    Args:
        said: What `ledger.lua` says: which record, and why.
        address: The server's.
    """
    record, _, why = said.partition("|")
    return DamagedError(
        f"the store's {record} on {address} is damaged: {why}",
        remedy="Check the server's disk and memory; restore its files from a copy, or start a new run.",
    )


def explain_answer(error: Exception, address: Address, what: str) -> ForebayError:
    """Return an error that the server gave as an answer, in words that say what to do.

    Args:
        error: The answer.
        address: The server's.
        what: What was asked for.
    """
    code, text = code_of(error), str(error)
    if code == "OOM":
        return StoreError(
            f"the memory of the store's server {address} is full: {what} was refused",
            remedy="Nothing was lost; it goes on once the learner commits. Or raise the server's maxmemory.",
        )
    if code == "MISCONF":
        return StoreError(
            f"the store's server {address} cannot write to its disk: {what} was refused",
            got=text,
            remedy="Free space on the server's disk; nothing was lost, the call can be made again.",
        )
    if code == "NOPERM" or text.startswith(_NOT_ALLOWED_TO_SCRIPT):
        return ConfigError(f"the store's server {address} does not allow {what}: {text}", remedy=_ACCESS_LIST)
    if code in _PASSING or code in _PASSING_OF_A_CLUSTER:
        what, remedy = _PASSING.get(code, _MOVING)
        return StoreError(f"the store's server {address} {what}", got=text, remedy=remedy)
    if "SELECT is not allowed in cluster mode" in text:
        return ConfigError(
            "a cluster has one database only", got=address, limit="database 0", remedy="Change store.url."
        )
    if code == "DAMAGED":  # from the scripts themselves
        return damaged(text.partition(" ")[2].partition(" script:")[0], address)
    if "hash value is not an integer" in text:
        return DamagedError(
            f"a count of the store on {address} is damaged: it is no number",
            remedy="Check the server's disk and memory; restore its files from a copy, or start a new run.",
        )
    if code == "WRONGTYPE":
        return StoreError(f"the store on {address} holds keys that are not its own: {text}")
    if text.lower().startswith(("unknown command", "err unknown command")):
        return ConfigError(f"the store's server {address} does not know {what}: {text}")
    if any(text.startswith(start) for start in _AUTHENTICATION) or code == "NOAUTH":
        return refused_password(address, text)
    return StoreError(f"the store's server {address} refused {what}: {text}")


def refused_password(address: Address, text: str) -> ConfigError:
    """Return the error of a password that is missing or wrong."""
    return ConfigError(
        f"the store's server {address} refuses the user or the password: {text}",
        remedy="Check store.username, and the environment variable that store.password_env names.",
    )


def hopeless(error: Exception, address: Address) -> ConfigError | None:
    """Return why connecting again would not help, or None if it may."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"the certificate of the store's server {address} is not valid: {cause.verify_message}",
                remedy="Let store.tls_ca_file name the authority that signed it, and store.url the host "
                "that it is for. It is always verified.",
            )
        cause = cause.__cause__ or cause.__context__
    return None


def away(address: Address, cause: Exception, tries: int, waited_s: float) -> StoreError:
    """Return the error of a server that could not be reached in time."""
    return StoreError(
        f"the store's server {address} is away: {cause}",
        got=f"{tries} tries in {waited_s:.0f} s",
        remedy="Start it, or check store.url. Calls are safe to repeat.",
    )
