"""The learner: take, pack, record, step, publish, checkpoint."""
