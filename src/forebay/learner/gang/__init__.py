"""A learner of several processes: process 0 leads, the others do what it says, in the same order."""
