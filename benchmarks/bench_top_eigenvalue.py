"""The top GGN and Hessian eigenvalue: theta0 against other libraries, each against a dense float64 reference.

`python benchmarks/bench_top_eigenvalue.py --out benchmarks/results/top_eigenvalue.json` (five minutes). Opponents are
skipped, visibly, where they are not installed: curvlinops-for-pytorch (with scipy's eigsh), hessian-eigenthings
(defaults, and with 20 iterations asked for), pyhessian.

Cost is counted, not timed: floating-point operations of matrix products and convolutions as torch counts them, over
those of one forward and backward pass; and forward passes, by a hook on the model. All tools take turns, seed by seed.
"""

import argparse
import contextlib
import copy
import importlib.metadata
import io
import json
import platform
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rate_problems import digits_bn_resnet
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from theta0.curvature import top_eigenvalue

Problem = tuple[nn.Module, Tensor, Tensor]
Tool = Callable[[Problem, int], float]


def reference_mlp() -> Problem:
    """MLP 64-256-256-256-10 with He start on 128 digits."""
    torch.manual_seed(0)
    widths, layers = [64, 256, 256, 256, 10], []
    for i in range(4):
        layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
        nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu" if i < 3 else "linear")
        nn.init.zeros_(layers[-2].bias)
    data = load_digits()
    index = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(1))[:128]
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    return nn.Sequential(*layers[:-1]), x[index], torch.tensor(data.target)[index]


def bn_resnet() -> Problem:
    """Two residual blocks with batch normalisation in training mode on 64 digits."""
    torch.manual_seed(0)
    model, batches, _ = digits_bn_resnet()
    x, y = batches[0]
    return model, x[:64], y[:64]


PROBLEMS = {"MLP": reference_mlp, "BN-ResNet, training mode": bn_resnet}


def exact(made: Problem, matrix: str) -> float:
    """Dense where it fits (GGN by the Gram matrix of its factors), else eigsh on float64 double-backward products."""
    model, x, y = made
    model, x = copy.deepcopy(model).double(), x.double()
    parameters = list(model.parameters())
    f = model(x)
    if matrix == "ggn":
        p = f.detach().softmax(1)
        factor = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None]  # diag(p) - p pᵀ = S Sᵀ
        mixed = torch.einsum("nc,nck->nk", f, factor).flatten()
        rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in mixed]
        a = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]) / len(x) ** 0.5
        return float(torch.linalg.eigvalsh(a @ a.T)[-1])
    first = torch.autograd.grad(F.cross_entropy(f, y), parameters, create_graph=True)
    flat = torch.cat([g.flatten() for g in first])

    def product(v: np.ndarray) -> np.ndarray:
        found = torch.autograd.grad(flat, parameters, torch.from_numpy(v.ravel()), retain_graph=True)
        return torch.cat([g.flatten() for g in found]).numpy()

    n = flat.numel()
    return float(eigsh(LinearOperator((n, n), product, dtype=np.float64), k=1, which="LA", tol=1e-10)[0][0])


def ours(matrix: str) -> Tool:
    return lambda made, seed: top_eigenvalue(made[0], [made[1:]], "cross_entropy", matrix=matrix, generator=seed).value


def curvlinops(matrix: str, **options) -> Tool:
    def run(made: Problem, seed: int) -> float:
        from curvlinops import GGNLinearOperator, HessianLinearOperator

        model, x, y = made
        replace_all_batch_norm_modules_(model)  # torch.func refuses running statistics
        kind = GGNLinearOperator if matrix == "ggn" else HessianLinearOperator
        operator = kind(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)], check_deterministic=False)
        start = np.random.default_rng(seed).standard_normal(operator.shape[0]).astype(np.float32)
        return float(eigsh(operator.to_scipy(), k=1, which="LA", v0=start, **options)[0][0])

    return run


def eigenthings(matrix: str, method: str) -> Tool:
    def run(made: Problem, seed: int) -> float:
        import hessian_eigenthings as h

        model, x, y = made
        replace_all_batch_norm_modules_(model)
        if matrix == "ggn":
            at_output = h.supervised_loss_of_output(nn.CrossEntropyLoss())
            operator = h.GGNOperator(model, [(x, y)], h.supervised_forward, at_output)
        else:
            operator = h.HessianOperator(model, [(x, y)], h.supervised_loss(nn.CrossEntropyLoss()))
        if method == "power":
            return float(h.power_iteration_one(operator, seed=seed)[0])
        given = {} if method == "lanczos" else {"max_iter": 20, "which": "LA", "reorthogonalize": True}
        return float(h.lanczos(operator, k=1, seed=seed, **given).eigenvalues[0])

    return run


def pyhessian(made: Problem, seed: int) -> float:
    from pyhessian import hessian

    torch.manual_seed(seed)
    model, x, y = made
    return float(hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False).eigenvalues()[0][0])


TOOLS: dict[str, dict[str, Tool]] = {
    matrix: {
        "theta0": ours(matrix),
        "curvlinops + eigsh": curvlinops(matrix),
        "curvlinops + eigsh, tol 1e-2": curvlinops(matrix, tol=1e-2),
        "hessian-eigenthings lanczos": eigenthings(matrix, "lanczos"),
        "hessian-eigenthings lanczos, 20": eigenthings(matrix, "lanczos 20"),
        "hessian-eigenthings power": eigenthings(matrix, "power"),
    }
    for matrix in ("ggn", "hessian")
}
TOOLS["hessian"]["pyhessian"] = pyhessian


class Operations(TorchDispatchMode):
    """Floating-point operations of matrix products and convolutions; unlike FlopCounterMode it bears torch.func."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count one call."""
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def counted(make: Callable[[], Problem], tool: Callable[[Problem], float]) -> tuple[float, int, float]:
    """What a tool returns for a fresh copy, how often it ran the forward pass, and its operations."""
    made, calls = make(), []
    handle = made[0].register_forward_pre_hook(lambda *_: calls.append(1))
    with Operations() as flops, contextlib.redirect_stdout(io.StringIO()):
        value = tool(made)
    handle.remove()
    return value, len(calls), flops.total


def one_gradient(made: Problem) -> float:
    F.cross_entropy(made[0](made[1]), made[2]).backward()
    return 0.0


def raced(name: str, matrix: str, seeds: int) -> list[dict]:
    make = PROBLEMS[name]
    truth = exact(make(), matrix)
    unit = counted(make, one_gradient)[2]
    runs: dict[str, list[tuple[float, int, float]]] = {tool: [] for tool in TOOLS[matrix]}
    trouble: dict[str, str] = {}
    for seed in range(seeds):
        for tool, call in TOOLS[matrix].items():
            if tool in trouble:
                continue
            try:
                runs[tool].append(counted(make, lambda made, call=call, seed=seed: call(made, seed)))
            except ImportError as missing:
                trouble[tool] = f"skipped: {missing}"
            except Exception as error:  # an opponent's failure is a result
                trouble[tool] = f"failed: {type(error).__name__}: {error}"[:200]
    rows = []
    for tool, found in runs.items():
        row = {"problem": name, "matrix": matrix, "tool": tool, "exact": truth}
        if tool in trouble:
            row["trouble"] = trouble[tool]
        else:
            errors = [abs(value / truth - 1) for value, _, _ in found]
            gradients = [flops / unit for _, _, flops in found]
            row |= {
                "gradients": round(statistics.median(gradients), 2),
                "gradients_max": round(max(gradients), 2),
                "forward_passes": statistics.median(calls for _, calls, _ in found),
                "error": float(f"{statistics.median(errors):.3g}"),
                "error_max": float(f"{max(errors):.3g}"),
            }
        rows.append(row)
        print(shown(row), flush=True)
    return rows


def shown(row: dict) -> str:
    head = f"{row['problem']:25s} {row['matrix']:8s} {row['tool']:30s}"
    if "trouble" in row:
        return f"{head} {row['trouble']}"
    return (
        f"{head} {row['gradients']:7.1f} gradients (max {row['gradients_max']:.1f})  "
        f"error {row['error']:.1e} (max {row['error_max']:.1e})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the opponents' own
    rows = [row for name in PROBLEMS for matrix in TOOLS for row in raced(name, matrix, given.seeds)]
    environment = {"python": platform.python_version(), "seeds": given.seeds, "threads": 1}
    for package in ("torch", "scipy", "curvlinops-for-pytorch", "hessian-eigenthings", "pyhessian"):
        try:
            environment[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            environment[package] = None
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"environment": environment, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
