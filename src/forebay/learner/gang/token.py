"""The name of the token that the processes of a learner share; no JAX is imported here."""

from __future__ import annotations

from typing import Final

TOKEN_VARIABLE: Final = "FOREBAY_GANG_TOKEN"
