"""C64: a publisher dies at random moments and before every system call; no reader sees half a version."""

import subprocess
import sys
import textwrap

import numpy as np

from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader

# Imports once and forks each publisher, so that twenty deaths cost twenty forks.
HOST = textwrap.dedent(
    """
    import os, random, signal, sys, time
    from pathlib import Path
    import numpy as np
    from forebay.trajectory import PolicyVersion
    from forebay.weights.publisher import WeightPublisher
    from forebay.weights.reader import WeightReader
    from forebay.weights.settings import WeightSettings

    path, size = Path(sys.argv[1]), int(sys.argv[2])
    settings = WeightSettings(keep_versions=2)

    def publish(version):
        ones = np.full(size, version.version, np.float32)
        WeightPublisher(path, run_id="run", settings=settings).publish(version, {"a": ones, "b": ones})

    def publish_until_killed(incarnation, first, count):
        for number in range(first, first + count):
            publish(PolicyVersion(incarnation, number))

    def in_a_child(work):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        return pid

    def newest():
        version = WeightReader(path).latest()
        return version.version if version else 0
    """
)

RANDOM_KILLS = HOST + textwrap.dedent(
    """
    rng = random.Random(int(sys.argv[3]))
    for incarnation in range(20):
        pid = in_a_child(lambda: publish_until_killed(incarnation, newest() + 1, 10**6))
        time.sleep(rng.uniform(0.005, 0.08))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    publish_until_killed(20, newest() + 1, max(1, 200 - newest()))
    print(newest())
    """
)

# The interpreter announces calls that touch the file system; the publisher dies before the k-th of them.
KILL_BEFORE_EACH_CALL = HOST + textwrap.dedent(
    """
    def publish_and_die(version, call):
        seen = 0
        def die(event, arguments):
            nonlocal seen
            if event in {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"}:
                seen += 1
                if seen == call:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(die)
        publish(version)

    for number in range(1, 4):
        publish(PolicyVersion(0, number))
    before, call, killed = newest(), 0, True
    while killed:
        call += 1
        pid = in_a_child(lambda: publish_and_die(PolicyVersion(call, before + 1), call))
        killed = os.waitpid(pid, 0)[1] != 0
        version, tensors = WeightReader(path).load()
        assert version.version in (before, before + 1), version
        assert all((tensor == version.version).all() for tensor in tensors.values()), version
        assert killed or version.version == before + 1
        before = version.version
    print(call, sum(1 for entry in path.iterdir() if entry.name.startswith(".")))
    """
)


def start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_c64_no_torn_read_while_the_publisher_is_killed_twenty_times(tmp_path):
    publisher = start(RANDOM_KILLS, tmp_path, 100_000, 7)
    reader, have, num_reads = WeightReader(tmp_path), None, 0
    while publisher.poll() is None or reader.newer_than(have):
        if reader.newer_than(have) is None:
            continue
        version, tensors = reader.load()
        assert have is None or version > have
        have, num_reads = version, num_reads + 1
        np.testing.assert_array_equal(tensors["a"], np.full(100_000, version.version, np.float32))
        np.testing.assert_array_equal(tensors["b"], tensors["a"])
    output, errors = publisher.communicate(timeout=100)
    assert publisher.returncode == 0, errors
    assert have == PolicyVersion(20, int(output))
    assert int(output) >= 200
    assert num_reads > 5


def test_c64_no_torn_read_whichever_system_call_the_publisher_dies_before(tmp_path):
    publisher = start(KILL_BEFORE_EACH_CALL, tmp_path, 1_000)
    output, errors = publisher.communicate(timeout=100)
    assert publisher.returncode == 0, errors
    num_calls, num_leftovers = map(int, output.split())
    assert num_calls > 12
    assert num_leftovers == 0
