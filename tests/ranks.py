"""Real processes of a gloo group, for tests of what several ranks do together."""

import multiprocessing
import os
import queue
import tempfile
import traceback

import pytest
import torch
from torch import distributed

needs_gloo = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="torch was built without gloo"
)


def _rank_main(rank, world, folder, function, arguments, found):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    os.environ["THETA0_RANK_TIMEOUT"] = os.environ.get("THETA0_RANK_TIMEOUT", "60")
    try:
        found.put((rank, function(rank, *arguments), ""))
        distributed.barrier()  # gloo aborts where a peer leaves first
        distributed.destroy_process_group()
    except BaseException:
        found.put((rank, None, traceback.format_exc()))


def on_ranks(world, function, *arguments, seconds=120):
    """What a function of the rank returns, by rank; what one raises is raised."""
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank_main, args=(rank, world, folder, function, arguments, found))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        try:
            results = {}
            for _ in processes:
                rank, result, error = found.get(timeout=seconds)
                assert not error, f"rank {rank}: {error}"
                results[rank] = result
        except queue.Empty:
            raise AssertionError(f"only ranks {sorted(results)} came back within {seconds} seconds") from None
        finally:
            for process in processes:
                process.join(timeout=0 if len(results) < world else 20)
                process.kill()
    return [results[rank] for rank in range(world)]
