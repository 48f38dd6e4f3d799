"""Where tasks and trajectories live between processes: leased, stored, consumed, never lost."""

from forebay.store.accounting import count_lost
from forebay.store.inspection import view_store
from forebay.store.opening import open_store
from forebay.store.protocol import (
    Chooser,
    Durability,
    GroupSpec,
    JournalEntry,
    Receipt,
    Rewound,
    Slot,
    Store,
    StoreStats,
    TakenGroup,
    TaskSink,
    TaskSource,
    TrajectorySink,
    TrajectorySource,
)
from forebay.store.settings import StoreSettings, check_capacity
from forebay.store.view import SetAside, StoredGroup, StoredMember, StoreView

__all__ = [
    "Chooser",
    "Durability",
    "GroupSpec",
    "JournalEntry",
    "Receipt",
    "Rewound",
    "SetAside",
    "Slot",
    "Store",
    "StoreSettings",
    "StoreStats",
    "StoreView",
    "StoredGroup",
    "StoredMember",
    "TakenGroup",
    "TaskSink",
    "TaskSource",
    "TrajectorySink",
    "TrajectorySource",
    "check_capacity",
    "count_lost",
    "open_store",
    "view_store",
]
