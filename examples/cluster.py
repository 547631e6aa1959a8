"""A race of starting points on a Dask or Ray cluster: the result is that of one process.

    python examples/cluster.py dask                # workers on this machine; or ray
    python examples/cluster.py dask://HOST:PORT    # a cluster that runs; or ray://HOST:PORT

Within a program that has a cluster already, `joblib.parallel_config("dask")` around `compare` does the same.
"""

import sys

import torch
from torch import nn

from theta0 import compare


def main():
    torch.manual_seed(0)
    x = torch.randn(512, 16)
    batches = list(zip(x.split(32), (x[:, 0] > 0).long().split(32), strict=True))
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(16, 16), nn.Sigmoid())), nn.Linear(16, 2))
    backend = sys.argv[1] if len(sys.argv) > 1 else "dask"
    starts = ["default", "unit-variance", "lcw"]
    print(compare(model, batches, "cross_entropy", starts=starts, steps=20, seeds=2, jobs=2, backend=backend))


if __name__ == "__main__":  # workers import this file
    main()
