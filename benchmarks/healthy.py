"""Starts that are known to train: none may be called ill.

torchvision, timm and transformers models built from their configurations (nothing is downloaded; what is not installed
is left out), and the remedies of a folder of cases. Small inputs, one batch, as their users train them.

    python benchmarks/healthy.py [--cases DIR] [--out FILE.json] [--only resnet,bert]
    python benchmarks/healthy.py --families dev|test [--data cifar10_jpeg.npz] [--probe-steps 0]

`--families` takes 30 timm models of 30 families instead, the smallest of each, at 96 pixels, on two batches of sixteen
images that differ: photographs of ten kinds (an archive of JPEG files, CIFAR-10's say, by `--data`), else drawn shapes.
They are dealt to two halves by a fixed seed: rules may be changed for what the development half shows, the test half is
to be run once, after the last change. `--families known` are three that once gave false alarms.

Beside a CPU build of torch, torchvision may need a file that declares its operators first: --before FILE.
"""

import argparse
import importlib
import importlib.util
import io
import json
import platform
import random
import runpy
import subprocess
import sys
import time
from pathlib import Path

import torch

VISION = (
    "resnet18", "resnet50", "vgg11_bn", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x1_0", "mnasnet0_5",
    "regnet_y_400mf", "densenet121", "efficientnet_b0", "convnext_tiny", "vit_b_16", "swin_t", "squeezenet1_1",
    "googlenet",
)  # fmt: skip
TIMM = (
    "resnet26", "convnext_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224", "efficientnet_lite0",
    "regnetx_002", "xcit_nano_12_p16_224", "poolformer_s12", "mobilenetv3_small_050", "nf_resnet26", "cait_xxs24_224",
)  # fmt: skip
FAMILIES = (
    "resnetv2_18", "resnet10t", "mobileone_s0", "caformer_s18", "coat_lite_tiny", "coatnet_nano_rw_224", "convit_tiny",
    "convnext_atto_rms", "crossvit_9_240", "deit3_small_patch16_224", "edgenext_xx_small", "efficientformerv2_s0",
    "efficientvit_b0", "fasternet_t0", "lcnet_050", "ghostnetv2_100", "hgnetv2_b0", "inception_next_atto", "levit_128s",
    "mambaout_femto", "mobilevitv2_050", "pit_ti_224", "pvt_v2_b0", "repvit_m0_9", "rexnet_100", "skresnet18",
    "swin_tiny_patch4_window7_224", "tiny_vit_5m_224", "vit_relpos_small_patch16_224", "dla46_c",
)  # fmt: skip
KNOWN = ("vit_tiny_patch16_dinov3_qkvb", "test_coatnet", "xcit_nano_12_p8_224")  # false alarms of version 0.2.0
HALVES_SEED, SIDE, KINDS = 15, 96, 10
LANGUAGE = {
    "BertForSequenceClassification": {"num_labels": 4},
    "DistilBertForSequenceClassification": {"num_labels": 4, "dim": 64, "hidden_dim": 128, "n_layers": 3, "n_heads": 4},
    "RobertaForMaskedLM": {},
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "GPTNeoXForCausalLM": {"num_hidden_layers": 4},
    "LlamaForCausalLM": {"num_key_value_heads": 4},
    "OPTForCausalLM": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "T5ForConditionalGeneration": {
        "d_model": 64,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "d_kv": 16,
        "decoder_start_token_id": 0,
    },
}
COMMON = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}


def pictures(side, count=8):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(count, 3, side, side, generator=generator), torch.arange(count))]


def photographs(path, count):
    """The first images of each kind of an archive of JPEG files, kinds mixed, to zero mean and unit variance."""
    import numpy
    from PIL import Image

    archive = numpy.load(path, allow_pickle=False)
    labels, offsets, data = archive["y_train"], archive["offset_train"], archive["jpeg_train"].tobytes()
    chosen = [int(i) for rank in range(count // KINDS + 1) for i in [(labels == k).nonzero()[0][rank] for k in range(KINDS)]]  # fmt: skip  # noqa: E501
    images = []
    for index in chosen[:count]:
        picture = Image.open(io.BytesIO(data[offsets[index] : offsets[index + 1]])).convert("RGB").resize((SIDE, SIDE))
        images.append(torch.from_numpy(numpy.array(picture)).permute(2, 0, 1) / 255)
    return standardized(torch.stack(images)), torch.from_numpy(labels[chosen[:count]].astype("int64"))


def drawings(count):
    """Stripes of a kind's direction behind a disc of a kind's colour, each at its own place, size and phase."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % KINDS
    x, y = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="xy")
    images = []
    for kind in labels.tolist():
        place, (size, phase) = torch.rand(2, generator=generator), torch.rand(2, generator=generator)
        angle = torch.tensor(kind * torch.pi / KINDS)
        stripes = torch.sin(40 * (x * angle.cos() + y * angle.sin()) + 6.3 * phase) / 2 + 0.5
        shade = torch.rand(3, 1, 1, generator=generator) * stripes
        colour = torch.tensor([kind % 2, kind // 2 % 2, kind // 4 % 2]).reshape(3, 1, 1) * 0.8 + 0.1
        inside = (x - place[0]) ** 2 + (y - place[1]) ** 2 < (0.1 + 0.2 * size) ** 2
        images.append(torch.where(inside, colour, shade))
    return standardized(torch.stack(images)), labels


def standardized(images):
    mean, spread = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    return (images - mean) / spread


def of_family(name, data):
    """A timm model at 96 pixels, where it can be built for them, on two batches of sixteen."""
    create = importlib.import_module("timm").create_model
    try:
        model = create(name, pretrained=False, img_size=SIDE)
    except TypeError:  # its size is free
        model = create(name, pretrained=False)
    images, labels = photographs(data, 32) if data else drawings(32)
    try:
        with torch.no_grad():
            model.eval()(images[:1])
    except (RuntimeError, AssertionError):  # it takes the size of its configuration only
        model = create(name, pretrained=False)
        images = torch.nn.functional.interpolate(images, model.default_cfg["input_size"][1:], mode="bilinear")
    return model, list(zip(images.split(16), labels.split(16), strict=True)), "cross_entropy"


def families(half):
    """The models of a half, dealt by a fixed seed before any was looked at."""
    if half == "known":
        return KNOWN
    dealt = random.Random(HALVES_SEED).sample(FAMILIES, len(FAMILIES))
    return dealt[: len(dealt) // 2] if half == "dev" else dealt[len(dealt) // 2 :]


def of_torchvision(name):
    models = importlib.import_module("torchvision.models")
    options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    side = 224 if name in ("vit_b_16", "swin_t") else 96
    return models.get_model(name, weights=None, **options), pictures(side), "cross_entropy"


def of_timm(name):
    model = importlib.import_module("timm").create_model(name, pretrained=False)
    return model, pictures(224 if "224" in name else 96), "cross_entropy"


def of_transformers(name):
    library = importlib.import_module("transformers")
    kind = getattr(library, name)
    options = {"vocab_size": 200, **(COMMON if "hidden_size" not in LANGUAGE[name] else {}), **LANGUAGE[name]}
    ids = torch.randint(5, 200, (8, 24), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(8) % 4 if "Classification" in name else ids
    return kind(kind.config_class(**options)), [{"input_ids": ids, "labels": labels}], None


def of_case(path):
    from theta0.targets import load_target

    sys.path.insert(0, str(Path(__file__).parent))
    fixed_start = importlib.import_module("cases").fixed_start
    target = load_target(path)
    return fixed_start(sys.modules[f"theta0_target_{Path(path).stem}"], target)


SOURCES = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers, "fixed": of_case}


def child(source, name, data, probe_steps):
    from theta0 import diagnose

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batches, loss, *rest = of_family(name, data) if source == "family" else SOURCES[source](name)
    optimizer, rate = rest or (None, None)
    start = time.perf_counter()
    model = model if source == "fixed" else model.train()
    found = diagnose(model, batches, loss, optimizer=optimizer, learning_rate=rate, probe_steps=probe_steps)
    told = [{"code": f.code, "severity": f.severity, "layer": f.layer, "value": f.value} for f in found.findings]
    cost = {"gradients": found.cost, "per batch": found.cost / len(batches)}
    trains = None if found.probe is None else any(run.outcome == "trains" for run in found.probe.runs)
    return {"findings": told, **cost, "seconds": time.perf_counter() - start, "trains": trains}


def listed(cases, half):
    if half:
        return [("family", name) for name in families(half)]
    found = [("torchvision", name) for name in VISION] + [("timm", name) for name in TIMM]
    found += [("transformers", name) for name in LANGUAGE]
    found = [(source, name) for source, name in found if importlib.util.find_spec(source)]
    return found + [("fixed", str(path)) for path in sorted(cases.glob("*.py"))] if cases else found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--before", type=Path, help="a Python file to run before torchvision is imported")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="parts of names, joined by commas")
    parser.add_argument("--families", choices=("dev", "test", "known"))
    parser.add_argument("--data", type=Path, help="images of ten kinds, as an archive of JPEG files")
    parser.add_argument("--probe-steps", type=int, default=100)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one network")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kept = runpy.run_path(str(arguments.before)) if arguments.before else None  # it may hold what must stay alive
        print(json.dumps(child(*arguments.child, arguments.data, arguments.probe_steps)))
        del kept
        return
    parts = [part for part in (arguments.only or "").split(",") if part]
    options = ["--probe-steps", str(arguments.probe_steps)]
    options += ["--before", str(arguments.before)] if arguments.before else []
    options += ["--data", str(arguments.data)] if arguments.data else []
    rows = {}
    for source, name in listed(arguments.cases, arguments.families):
        title = f"{source} {Path(name).stem}"
        if parts and not any(part in title for part in parts):
            continue
        command = [sys.executable, __file__, *options, "--child", source, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.limit, check=False)
            row = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr}
        except subprocess.TimeoutExpired:
            row = {"error": f"more than {arguments.limit} s"}
        rows[title] = row
        severe = [f"{f['code']} ({f['severity']}, {f['layer']}, {f['value']:.3g})" for f in row.get("findings", ()) if f["severity"] != "note"]  # fmt: skip  # noqa: E501
        told = "ERROR " + row["error"].strip()[-200:] if "error" in row else ", ".join(severe) or "clean"
        cost = f"{row.get('gradients', 0):5.1f} {row.get('per batch', 0):5.2f}"
        print(f"{title[:50]:50} {cost} {row.get('trains')!s:5}  {told}", flush=True)
    clean = [t for t, r in rows.items() if "error" not in r and all(f["severity"] == "note" for f in r["findings"])]
    print(f"clean {len(clean)} of {len(rows)}")
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version()}
        arguments.out.write_text(json.dumps({"networks": rows, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
