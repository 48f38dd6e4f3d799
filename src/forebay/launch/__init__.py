"""Launch: start, watch and restart the processes of a run."""
