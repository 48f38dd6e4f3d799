"""Starting and supervising the processes of a run on one machine."""

from forebay.launch.child import ProcessSpec
from forebay.launch.placement import divide_cpus, move_thread_to, settle_in, share_of
from forebay.launch.settings import LaunchSettings
from forebay.launch.supervisor import Supervisor

__all__ = [
    "LaunchSettings",
    "ProcessSpec",
    "Supervisor",
    "divide_cpus",
    "move_thread_to",
    "settle_in",
    "share_of",
]
