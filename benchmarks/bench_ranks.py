"""How the cost of a diagnosis grows with the number of ranks: gloo processes of this machine, one thread each.

Each rank brings four batches of its own of a network of square linear layers with ReLU (width 512, depth 8, batches of
128), and the diagnosis, without short runs, reads four or, with --all, those of all ranks. Of each rank: the process
time of the diagnosis and of a gradient of the same batch, in turn, five times; and what it exchanges: how often the
ranks meet, and how many bytes a rank sends.

    python benchmarks/bench_ranks.py [--ranks 1,2,4] [--all] [--out FILE.json]

Process time, because more processes than cores wait for each other.
"""

import argparse
import json
import multiprocessing
import pickle
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional as F

WIDTH, DEPTH, SIZE, BATCHES, ROUNDS = 512, 8, 128, 4, 5


def seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def data_of(rank):
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(BATCHES * SIZE, WIDTH, generator=generator)
    return list(zip(x.split(SIZE), (x[:, 0] > 0).long().split(SIZE), strict=True))


def network():
    torch.manual_seed(0)
    parts = [part for _ in range(DEPTH - 1) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, WIDTH))


def gradient(model, batch):
    torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), list(model.parameters()))


def counted(ranks):
    """Counts of meetings and of bytes that this rank sends, kept up by the functions that exchange."""
    found = {"meetings": 0, "sent": 0}
    meet, gather, broadcast = ranks.meet, distributed.all_gather_object, distributed.broadcast_object_list

    def meeting(where):
        found["meetings"] += ranks.ranks() > 1
        meet(where)

    def gathering(held, value):
        found["sent"] += len(pickle.dumps(value))
        gather(held, value)

    def sending(held, src=0):
        found["sent"] += len(pickle.dumps(held)) if distributed.get_rank() == src else 0
        broadcast(held, src=src)

    ranks.meet, distributed.all_gather_object, distributed.broadcast_object_list = meeting, gathering, sending
    return found


def rank_main(rank, world, folder, everything, pipe):
    import theta0
    from theta0 import _ranks

    torch.set_num_threads(1)
    if world > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    model, batches, counts = network(), data_of(rank), counted(_ranks)
    read = BATCHES * world if everything else BATCHES
    rows = []
    for number in range(ROUNDS + 1):  # the first warms up
        one = seconds(lambda: [gradient(model, batch) for batch in batches]) / BATCHES
        for key in counts:
            counts[key] = 0
        whole = seconds(lambda: theta0.diagnose(model, batches, "cross_entropy", probe_steps=0, max_batches=read))
        rows += [(one, whole, whole / one / read)] if number else []
    pipe.send([statistics.median(column) for column in zip(*rows, strict=True)] + [counts["meetings"], counts["sent"]])
    if world > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def measured(world, everything):
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            receive, send = context.Pipe(duplex=False)
            processes.append(context.Process(target=rank_main, args=(rank, world, folder, everything, send)))
            pipes.append(receive)
            processes[-1].start()
        rows = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
    one, whole, ratio = (statistics.median(row[i] for row in rows) for i in range(3))
    return {
        "ranks": world, "batches": BATCHES * world if everything else BATCHES, "gradient": one, "diagnosis": whole,
        "ratio": ratio, "least": min(row[2] for row in rows), "most": max(row[2] for row in rows),
        "meetings": rows[0][3], "sent": max(row[4] for row in rows),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4", help="numbers of processes, joined by commas")
    parser.add_argument("--all", action="store_true", help="read the batches of all ranks, not four")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for world in map(int, arguments.ranks.split(",")):
        rows.append(measured(world, arguments.all))
        row = rows[-1]
        print(
            f"{world} ranks, {row['batches']} batches: {row['ratio']:.2f} ({row['least']:.2f}-{row['most']:.2f}) "
            f"gradients a batch on each rank, gradient {row['gradient'] * 1e3:.1f} ms, {row['meetings']} meetings, "
            f"{row['sent'] / 1e6:.2f} MB sent by a rank",
            flush=True,
        )
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"rows": rows, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
