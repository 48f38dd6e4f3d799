"""What a server's errors mean, and what mends them."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from forebay.errors import ConfigError, ForebayError, StoreError
from forebay.store.address import Address

if TYPE_CHECKING:
    from redis.exceptions import ResponseError

# A server that is starting, or about to become a primary, or has lost its replicas for the moment.
_PASSING: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS",
)  # fmt: skip
_AUTHENTICATION: Final = ("NOAUTH", "WRONGPASS", "invalid username-password", "Client sent AUTH")
_NOT_ALLOWED_TO_SCRIPT: Final = "The user executing the script can"
_ACCESS_LIST: Final = "Give the user the commands and keys that docs/how-to/redis.md lists."


def code_of(error: Exception) -> str:
    """Return an error's code: its first word, which redis-py keeps apart where it knows it."""
    return getattr(error, "status_code", None) or str(error).partition(" ")[0]


def is_passing(error: ResponseError) -> bool:
    """Return whether the same call may succeed in a moment."""
    return code_of(error) in _PASSING


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
    if code == "READONLY":
        return StoreError(
            f"the store's server {address} is a replica and takes no writes",
            remedy="Let store.url name the primary; after a fail-over, the new one.",
        )
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        return ConfigError(
            f"the store's server {address} is one of a cluster, and another node keeps this run",
            got=text,
            remedy="Let store.url name that node, or a server that is not part of a cluster.",
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
