"""Every architecture of timm and torchvision, and those of transformers shrunk: does a diagnosis get through?

Models are built as their configurations draw them (nothing is downloaded), for small drawn images or random tokens, two
batches of eight, without a probe. Each is diagnosed in a process forked from one that has imported everything, with a
limit of processor time and of memory. Of each is kept: whether it could be built, what the diagnosis raised, what it
found, whether a bit of the model or of a random state is another afterwards, and its process time in gradients.

    python benchmarks/zoo.py STORE.jsonl [--only PART,PART] [--limit SECONDS] [--memory GIB] [--seconds SECONDS]
    python benchmarks/zoo.py STORE.jsonl --table          the page docs/zoo.md

The store is read first: what stands in it is not done again. In order: the smallest model of every timm family;
transformers, task by task in turn, with torchvision's segmentation and classification models, smallest first; then the
rest of timm, smallest first. Whether tokens carry
a signal is not asked: their labels are those that the architecture's own loss takes. All these starts are known to
train, so that a warning or an error is a false alarm.

Beside a CPU build of torch, torchvision may need a file that declares its operators first: --before FILE.
"""

import argparse
import collections
import contextlib
import hashlib
import importlib
import inspect
import itertools
import json
import multiprocessing
import platform
import resource
import runpy
import sys
import time
import traceback
from pathlib import Path

import torch
from healthy import drawings
from torch.nn import functional as F

SIZE, BATCHES, SIDE = 8, 2, 96
SHRUNK = {
    64: "hidden_size d_model n_embd embed_dim dim word_embed_proj_dim emb_dim embedding_size attention_hidden_size",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers "
    "num_encoder_layers num_experts_per_tok num_experts_per_token moe_topk",
    4: "num_attention_heads n_head n_heads num_heads num_key_value_heads encoder_attention_heads "
    "decoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts",
    16: "head_dim d_kv attention_head_size state_size ssm_state_size",
    128: "intermediate_size d_ff n_inner ffn_dim hidden_dim encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
    "shared_expert_intermediate_size ffn_hidden_size",
    200: "vocab_size",
    96: "max_position_embeddings n_positions max_seq_len",
    32: "image_size",
    8: "patch_size",
    1: "bos_token_id eos_token_id pad_token_id decoder_start_token_id n_group topk_group first_k_dense_replace",
}  # fmt: skip
TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "text": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}


def images(side, channels=3):
    pictures, labels = drawings(SIZE * BATCHES)
    pictures = F.interpolate(pictures, (side, side), mode="bilinear")[:, :channels]
    return list(zip(pictures.split(SIZE), labels.split(SIZE), strict=True))


def of_timm(name):
    """At 96 pixels where its size is free, else at its configuration's."""
    create = importlib.import_module("timm").create_model
    try:
        model = create(name, pretrained=False, img_size=SIDE)
    except TypeError:
        model = create(name, pretrained=False)
    channels, *_, own = model.default_cfg["input_size"]
    try:
        with torch.no_grad():
            model.eval()(torch.randn(1, channels, SIDE, SIDE))
        side = SIDE
    except (RuntimeError, AssertionError, ValueError):
        model, side = create(name, pretrained=False), own
    return model.train(), images(side, channels), "cross_entropy", None


def of_torchvision(name):
    models = importlib.import_module("torchvision.models")
    side = 224 if name.startswith(("vit", "swin", "maxvit", "inception")) else SIDE
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **options).train(), images(side), "cross_entropy", None


def of_segmentation(name):
    models = importlib.import_module("torchvision.models")
    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=5).train()
    batches = [(x, (x.mean(1) * 2).round().long().clamp(-2, 2) + 2) for x, _ in images(SIDE)]
    return model, batches, None, lambda model, batch: F.cross_entropy(model(batch[0])["out"], batch[1])


def of_transformers(name):
    task, _, name = name.partition("/")
    kind = getattr(importlib.import_module("transformers"), name)
    wanted = shrunk(kind.config_class())
    wanted |= {"num_labels": 4} if task in ("text", "image") else {}
    if task == "causal" and hasattr(kind.config_class(), "is_decoder"):
        wanted |= {"is_decoder": True}  # else they see what they predict
    config = kind.config_class(**wanted)
    model = kind(config).train()
    if task == "image":
        sides = [getattr(part, "image_size", None) for part in (config, getattr(config, "vision_config", None))]
        side = next((side for side in sides if isinstance(side, int)), SIDE)
        batches = [{"pixel_values": x, "labels": y % 4} for x, y in images(side)]
    else:
        ids = torch.randint(5, 200, (SIZE * BATCHES, 32), generator=torch.Generator().manual_seed(0)).split(SIZE)
        batches = [{"input_ids": x, "labels": torch.arange(SIZE) % 4 if task == "text" else x} for x in ids]
    return model, batches, None, None


def shrunk(config):
    """What makes a configuration small, and those within it; lists stay, since their lengths belong together."""
    config_type = importlib.import_module("transformers").PreTrainedConfig
    known = {key: None for key in inspect.signature(type(config)).parameters} | vars(config)
    wanted = {
        key: value
        for value, keys in SHRUNK.items()
        for key in keys.split()
        if key in known and (known[key] is None or type(known[key]) is int)
    }
    for key, inner in vars(config).items():
        if isinstance(inner, config_type):
            wanted[key] = type(inner)(**shrunk(inner))
    return wanted


SOURCES = {f.__name__.removeprefix("of_"): f for f in (of_timm, of_transformers, of_torchvision, of_segmentation)}


def mark(model):
    """A digest of all that a diagnosis must leave: values, gradients, modes, hooks, random state."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.requires_grad} {tensor.grad is None} {tensor.shape}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for name, module in model.named_modules():
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        digest.update(f"{name} {type(module).__name__} {module.training} {hooks} {sorted(vars(module))}".encode())
    return digest.hexdigest()


def seconds_of_a_gradient(model, batch, loss, step):
    from theta0._batches import load_batches
    from theta0._losses import loss_of
    from theta0._state import preserve_state

    loaded = load_batches([batch], model, step=step)[0]
    with preserve_state(model), torch.enable_grad():
        for _ in range(2):
            began = time.process_time()
            loss_of(model, loaded, loss)[0].backward()
    return time.process_time() - began


def diagnosed(source, name, told):
    from theta0 import diagnose

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    told["status"] = "not built"
    model, batches, loss, step = SOURCES[source](name)
    told |= {"parameters": sum(p.numel() for p in model.parameters()), "status": "does not run"}
    gradient = seconds_of_a_gradient(model, batches[0], loss, step)
    before, began = mark(model), time.process_time()
    told["status"] = "crash"
    try:
        found = diagnose(model, batches, loss, step=step, probe_steps=0)
        seconds = time.process_time() - began
        told["findings"] = [[f.code, f.severity, f.layer, f.value] for f in found.findings]
        told |= {"gradients": found.cost, "seconds": seconds, "time": seconds / gradient / BATCHES}
    finally:
        told["changed"] = mark(model) != before
    told["status"] = "ok"


def child(source, name, memory, pipe):
    told = {"source": source, "name": name}
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        diagnosed(source, name, told)
    except BaseException as error:
        told |= {"error": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-1500:]}
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            told["status"] = "memory"
    pipe.send(told)


def judged(source, name, limit, memory):
    """One model, in a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(source, name, int(memory * 2**30), send))
    process.start()
    send.close()
    told = {"source": source, "name": name, "status": "killed"}
    while process.is_alive() or receive.poll():
        if receive.poll(1.0):
            with contextlib.suppress(EOFError):  # it was killed
                told = receive.recv()
            break
        if process_seconds(process.pid) > limit:
            told["status"] = "time"
            process.kill()
            break
    process.join()
    return told


def process_seconds(number):
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def families(store, wanted):
    """The models of timm that are wanted, by family, each with its number of parameters, which is found once."""
    registry = importlib.import_module("timm.models._registry")
    timm, known = importlib.import_module("timm"), {row["name"]: row["size"] for row in store if row.get("size")}
    found = collections.defaultdict(list)
    for name in (name for name in timm.list_models() if wanted(f"timm {name}")):
        if name not in known:
            try:
                with torch.device("meta"), Spaced():
                    model = timm.create_model(name, pretrained=False)
                known[name] = sum(p.numel() for p in model.parameters())
            except Exception:  # some draw their values while they are built, which meta tensors cannot
                known[name] = None
            yield_size(store, name, known[name])
        found[registry._model_to_module[name]].append((known[name] or 2e7, name))
    return {family: [name for _, name in sorted(members)] for family, members in found.items()}


class Spaced(torch.overrides.TorchFunctionMode):
    """Numbers that models read while they are built, as rates of stochastic depth, are real ones."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {}) | ({"device": "cpu"} if function in (torch.linspace, torch.arange) else {})
        return function(*arguments, **options)


def yield_size(store, name, size):
    store.append({"name": name, "size": size})
    with store_path.open("a") as file:
        file.write(json.dumps(store[-1]) + "\n")


def listed(store, wanted):
    found = families(store, wanted)
    chosen = [("timm", members[0]) for members in found.values()]
    models = importlib.import_module("torchvision.models")
    classifiers = sorted(models.list_models(module=models), key=lambda name: parameters_of(models, name))
    others = of_each_task()
    others += [[("segmentation", name) for name in models.list_models(module=models.segmentation)]]
    others += [[("torchvision", name) for name in classifiers]]
    chosen += [entry for turn in itertools.zip_longest(*others) for entry in turn if entry is not None]
    rest = sorted((place, name) for members in found.values() for place, name in enumerate(members) if place)
    return chosen + [("timm", name) for _, name in rest]


def of_each_task():
    """The families of transformers, each for the first task that it has a model of; by task."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    taken, found = set(), []
    for task, mapping in TASKS.items():
        members = {f: name for f, name in getattr(auto, mapping).items() if f not in taken and isinstance(name, str)}
        taken |= set(members)
        found.append([("transformers", f"{task}/{name}") for name in dict.fromkeys(members.values())])
    return found


def parameters_of(models, name):
    return models.get_model_weights(name).DEFAULT.meta["num_params"]


def main():
    global store_path
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a JSON-lines file; what stands in it is not done again")
    parser.add_argument("--before", type=Path, help="a Python file to run before torchvision is imported")
    parser.add_argument("--only", help="parts of sources or names, joined by commas")
    parser.add_argument("--limit", type=float, default=150, help="seconds of processor time for one model")
    parser.add_argument("--memory", type=float, default=10, help="GiB of address space for one model")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further model is begun")
    parser.add_argument("--table", action="store_true", help="print the page of what is in the store, and do nothing")
    arguments = parser.parse_args()
    kept = runpy.run_path(str(arguments.before)) if arguments.before else None  # it may hold what must stay alive
    store_path, began = arguments.store, time.monotonic()
    lines = store_path.read_text().splitlines() if store_path.exists() else []
    store = [json.loads(line) for line in lines]
    if arguments.table:
        print(page([row for row in store if "status" in row]))
        return
    for module in ("theta0", "theta0.diagnosis", "torchvision", "timm", "transformers"):
        importlib.import_module(module)
    torch.set_num_threads(1)
    state = digest_of_sources()
    done = {(row["source"], row["name"]) for row in store if "status" in row}
    parts = [part for part in (arguments.only or "").split(",") if part]

    def wanted(title):
        return not parts or any(part in title for part in parts)

    for source, name in listed(store, wanted):
        title = f"{source} {name}"
        if (source, name) in done or not wanted(title):
            continue
        if time.monotonic() - began > arguments.seconds:
            break
        row = judged(source, name, arguments.limit, arguments.memory) | {"state": state}
        with store_path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{title[:60]:60} {row['status']:12} {row.get('time', 0):5.1f} {alarms(row)} {row.get('error', '')[:100]}",
            flush=True,
        )
    del kept


def digest_of_sources():
    """Which state of the library makes a row: a digest of its files."""
    folder = Path(importlib.import_module("theta0").__file__).parent
    files = sorted(folder.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def alarms(row):
    return ", ".join(f"{code} ({severity}, {layer})" for code, severity, layer, _ in row.get("findings", ()) if severity != "note")  # fmt: skip  # noqa: E501


def page(rows):
    """What docs/zoo.md holds."""
    latest = {(row["source"], row["name"]): row for row in rows}.values()
    lines = ["| source | tried | built and run | diagnosed | crashes | over a limit | bits changed | false alarms | gradients of time a batch (median, most) |"]  # fmt: skip  # noqa: E501
    lines += ["| --- " * 9 + "|"]
    for source in SOURCES:
        own = [row for row in latest if row["source"] == source]
        if not own:
            continue
        run = [row for row in own if row["status"] not in ("not built", "does not run")]
        ok = [row for row in run if row["status"] == "ok"]
        limits = [row for row in run if row["status"] in ("time", "memory", "killed")]
        times = sorted(row["time"] for row in ok) or [0.0]
        crash, wrong = sum(row["status"] == "crash" for row in run), sum(bool(alarms(row)) for row in ok)
        changed = sum(row.get("changed", False) for row in run)
        lines.append(
            f"| {source} | {len(own)} | {len(run)} | {len(ok)} | {crash} | {len(limits)} | {changed} | {wrong} "
            f"| {times[len(times) // 2]:.1f}, {times[-1]:.1f} |"
        )
    for title, chosen, shown in (
        ("False alarms", lambda row: alarms(row), alarms),
        ("Crashes", lambda row: row["status"] == "crash", lambda row: row.get("error", "")),
        ("Over a limit", lambda row: row["status"] in ("time", "memory", "killed"), lambda row: row["status"]),
    ):
        found = [row for row in latest if chosen(row)]
        lines += ["", f"## {title} ({len(found)})", ""] + [f"* `{row['name']}`: {shown(row)}" for row in found]
    states = collections.Counter(row.get("state", "earlier") for row in latest)
    counted = ", ".join(f"{count} of state {state}" for state, count in states.items())
    lines += ["", f"Rows by state of the code: {counted}."]
    return "\n".join([*lines, "", f"torch {torch.__version__}, Python {platform.python_version()}."])


if __name__ == "__main__":
    sys.exit(main())
