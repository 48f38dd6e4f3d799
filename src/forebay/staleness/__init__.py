"""Staleness: how old a token may be, what may be dispatched, and which groups may be taken.

Pure functions of values. Staleness is counted in policy versions: the version being differentiated minus the
version that sampled the token.
"""

from forebay.staleness.choosing import Choice, OutstandingGroup, choose_groups
from forebay.staleness.credit import check_updates_per_batch, dispatch_allowance
from forebay.staleness.settings import OnStale, StalenessSettings, credit_batches
from forebay.staleness.shares import BatchShares, Shares, order_of_dispatch
from forebay.staleness.siblings import Comparable, comparable, family_of, parse_part, part_name
from forebay.staleness.versions import Fork, effective_version, is_fresh, staleness_of

__all__ = [
    "BatchShares",
    "Choice",
    "Comparable",
    "Fork",
    "OnStale",
    "OutstandingGroup",
    "Shares",
    "StalenessSettings",
    "check_updates_per_batch",
    "comparable",
    "choose_groups",
    "credit_batches",
    "dispatch_allowance",
    "effective_version",
    "family_of",
    "is_fresh",
    "order_of_dispatch",
    "parse_part",
    "part_name",
    "staleness_of",
]
