"""Looking at a machine before a run: each probe is quick, changes nothing, and names the remedy."""

from forebay.launch.probes.finding import Finding, Level, Probe, look

__all__ = ["Finding", "Level", "Probe", "look"]
