"""Batching: settled groups become packed rows of a few fixed shapes."""

from forebay.batching.batch import Batch, MicroBatch, build_batch
from forebay.batching.ladder import bucket_lengths, bucket_of, build_ladder, measured_ladder
from forebay.batching.packing import Bucket, Packing, plan_packing
from forebay.batching.prefetch import Prefetched, Prefetcher
from forebay.batching.rows import TrainRows
from forebay.batching.settings import BatchingSettings
from forebay.batching.stats import BatchStats
from forebay.batching.supervised import Demonstration, build_supervised_batch, shuffled_batches
from forebay.batching.updates import build_updates, split_minibatches, updates_digest

__all__ = [
    "Batch",
    "BatchStats",
    "BatchingSettings",
    "Bucket",
    "Demonstration",
    "MicroBatch",
    "Packing",
    "Prefetched",
    "Prefetcher",
    "TrainRows",
    "bucket_lengths",
    "bucket_of",
    "build_batch",
    "build_ladder",
    "build_supervised_batch",
    "build_updates",
    "measured_ladder",
    "plan_packing",
    "shuffled_batches",
    "split_minibatches",
    "updates_digest",
]
