"""Starts that are known to train: none may be called ill.

torchvision, timm and transformers models built from their configurations (nothing is downloaded; what is not installed
is left out), and the remedies of a folder of cases. Small inputs, one batch, as their users train them.

    python benchmarks/healthy.py [--cases DIR] [--out FILE.json] [--only resnet,bert]

Beside a CPU build of torch, torchvision may need a file that declares its operators first: --before FILE.
"""

import argparse
import importlib
import importlib.util
import json
import platform
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


def child(source, name):
    from theta0 import diagnose

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batches, loss, *rest = SOURCES[source](name)
    optimizer, rate = rest or (None, None)
    start = time.perf_counter()
    model = model if source == "fixed" else model.train()
    found = diagnose(model, batches, loss, optimizer=optimizer, learning_rate=rate)
    told = [{"code": f.code, "severity": f.severity, "layer": f.layer, "value": f.value} for f in found.findings]
    return {"findings": told, "gradients": found.cost, "seconds": time.perf_counter() - start}


def listed(cases):
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
    parser.add_argument("--limit", type=float, default=300, help="seconds for one network")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kept = runpy.run_path(str(arguments.before)) if arguments.before else None  # it may hold what must stay alive
        print(json.dumps(child(*arguments.child)))
        del kept
        return
    parts = [part for part in (arguments.only or "").split(",") if part]
    rows, before = {}, ["--before", str(arguments.before)] if arguments.before else []
    for source, name in listed(arguments.cases):
        title = f"{source} {Path(name).stem}"
        if parts and not any(part in title for part in parts):
            continue
        command = [sys.executable, __file__, *before, "--child", source, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.limit, check=False)
            row = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr}
        except subprocess.TimeoutExpired:
            row = {"error": f"more than {arguments.limit} s"}
        rows[title] = row
        severe = [f"{f['code']} ({f['severity']}, {f['layer']}, {f['value']:.3g})" for f in row.get("findings", ()) if f["severity"] != "note"]  # fmt: skip  # noqa: E501
        told = "ERROR " + row["error"].strip()[-200:] if "error" in row else ", ".join(severe) or "clean"
        print(f"{title[:50]:50} {row.get('gradients', 0):5.1f} {row.get('seconds', 0):6.1f}s  {told}", flush=True)
    clean = [t for t, r in rows.items() if "error" not in r and all(f["severity"] == "note" for f in r["findings"])]
    print(f"clean {len(clean)} of {len(rows)}")
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version()}
        arguments.out.write_text(json.dumps({"networks": rows, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
