#!/bin/sh
# Makes the policy that ships with the demo, in two steps: the task alone, then with the tool's instructions in front.
# About a quarter of an hour on one core. Usage: scripts/make_demo_policy.sh DIRECTORY
set -eu
to=${1:?usage: scripts/make_demo_policy.sh DIRECTORY}
forebay=.venv/bin/forebay
$forebay sft examples/warm_start.toml --to "$to/first"
$forebay sft examples/warm_start.toml --to "$to/policy" \
    "model.path=$to/first" \
    environment.calculator.kwargs.instructions=true \
    generator.context=256 batching.max_length=256 batching.row_length=512 batching.rows=8 \
    supervised.dtype=bfloat16 supervised.num_demonstrations=4000 supervised.epochs=2 supervised.batch_tokens=8192 \
    optimizer.learning_rate=1e-3 optimizer.warmup_steps=10 optimizer.decay_until_step=190
