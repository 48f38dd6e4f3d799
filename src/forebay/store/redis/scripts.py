"""The scripts: one per verb, each run by the server as one step that nothing comes between."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple

_DIRECTORY: Final = Path(__file__).parent
# What a script may do. A server whose memory is full refuses those that grow the store, before their first
# write, and these only, so that space can always be freed.
_GROWS, _FREES, _READS = "#!lua", "#!lua flags=allow-oom", "#!lua flags=no-writes"


class Script(NamedTuple):
    """A script as the server knows it.

    Attributes:
        name: Its verb.
        source: Its text.
        digest: SHA-1 of the text, hexadecimal: its name on the server.
        writes: Whether it may change the store.
    """

    name: str
    source: bytes
    digest: str
    writes: bool


def _text(name: str) -> str:
    return (_DIRECTORY / f"{name}.lua").read_text(encoding="utf-8")


_CONSTANTS: Final = dict(re.findall(r"^([A-Z_]+) = (.+)$", _text("constants"), re.MULTILINE))
_CONSTANT: Final = re.compile(rf"\b({'|'.join(_CONSTANTS)})\b")


def _read(kind: str, name: str, *libraries: str) -> Script:
    text = "\n".join(_text(part) for part in (*libraries, name))
    source = f"{kind}\n{_CONSTANT.sub(lambda match: _CONSTANTS[match[1]], text)}".encode()
    digest = hashlib.sha1(source, usedforsecurity=False).hexdigest()
    return Script(name, source, digest, kind != _READS)


BEGIN: Final = _read(_FREES, "begin")
DISPATCH: Final = _read(_GROWS, "dispatch", "ledger", "closing", "adding")
PUT: Final = _read(_GROWS, "put", "ledger", "closing")

REFUSE: Final = _read(_FREES, "refuse", "ledger")
SETTLE: Final = _read(_FREES, "settle", "ledger", "closing", "leases")
CLAIM: Final = _read(_FREES, "claim", "ledger", "closing", "leases")
HEARTBEAT: Final = _read(_FREES, "heartbeat", "ledger", "closing", "leases")
FAIL: Final = _read(_FREES, "fail", "ledger", "closing", "leases")
RELEASE_SLOT: Final = _read(_FREES, "release_slot", "ledger", "closing", "leases")
LOOK: Final = _read(_FREES, "look", "ledger", "closing", "leases", "order")
SEIZE: Final = _read(_FREES, "seize", "ledger", "closing")
QUARANTINE: Final = _read(_FREES, "quarantine", "ledger", "closing")
REJECT: Final = _read(_FREES, "reject", "ledger", "closing", "adding")
RELEASE: Final = _read(_FREES, "release", "ledger")
RECORD: Final = _read(_FREES, "record", "ledger", "journal")
PUBLISH: Final = _read(_FREES, "publish", "ledger", "journal")
COMMIT: Final = _read(_FREES, "commit", "ledger", "journal")
REWIND: Final = _read(_FREES, "rewind", "ledger", "journal")
TRUNCATE: Final = _read(_FREES, "truncate", "ledger", "journal")
ADVANCE_FORK: Final = _read(_FREES, "advance_fork", "ledger", "journal")

MORE: Final = _read(_READS, "more", "ledger", "order")
STATS: Final = _read(_READS, "stats", "ledger", "totals")
ENTRIES: Final = _read(_READS, "entries", "ledger", "journal")
GROUP_IDS: Final = _read(_READS, "group_ids", "ledger")
AUDIT: Final = _read(_READS, "audit", "ledger", "journal", "totals")
