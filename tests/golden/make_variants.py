# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/variants: tiny random models of other shapes, with what transformers outputs.

    pip install -e .[golden]
    python tests/golden/make_variants.py [family ...]

A variant is kept only if neither an expert nor a greedy token changes, and logits move by less than
3.5e-4, when every weight is off by one part in 1e5; otherwise the next seed is tried.  What varies
is in variant_options.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "models" / "recipes")]

import deepseek_v1  # noqa: E402, I001
import variants  # noqa: E402
from variant_options import DEFAULTS, FAMILIES  # noqa: E402

NEW = 8
MARGIN = 0.004
MOVED = 3.5e-4
SEEDS = 40
# Keys that say nothing about the computation.
BOOKKEEPING = ("transformers_version", "use_cache", "initializer_range", "output_router_logits",
               "router_aux_loss_coef", "attention_dropout", "id2label", "label2id",
               "_name_or_path")  # fmt: skip
ROUTER = re.compile(
    r"(mlp|feed_forward|block_sparse_moe|moe|self_attention\.experts|self_attn\.experts|ffn|experts)"
    r"\.(gate|router)\.(weight|layer\.weight|classifier\.weight|wg\.weight)$"
    r"|router\.(weight|proj\.weight|gate\.weight|layer\.weight|classifier\.weight)$"
)
Routes = dict[str, tuple[torch.Tensor, torch.Tensor]]
# Buffers that a class computes from its config and saves all the same: a loader may ignore them.
DERIVED = re.compile(r"\.(slope_rate|(query|key|diagonal)_decay)$")
Run = Callable[[torch.Tensor], tuple[torch.Tensor, Routes]]


def entry(name: str, tensor: torch.Tensor, tied: bool, embedding: float | None) -> variants.Entry:
    """Shape, centre and scale of a tensor: activations of about unit size, routers lively."""
    shape = list(tensor.shape)
    if "e_score_correction_bias" in name or name.endswith("expert_bias"):
        return [shape, 0.0, 0.1]
    if tensor.dim() <= 1:
        start = float(tensor.float().mean()) if tensor.numel() else 0.0
        return [shape, start if start in (0.0, 1.0) else 0.0, 0.5 if "sinks" in name else 0.2]
    if name.endswith("bias"):
        return [shape, 0.0, 0.2]
    if name.endswith("router.proj.weight"):  # Gemma divides its input by sqrt(hidden)
        return [shape, 0.0, 2.0]
    if ROUTER.search(name):
        return [shape, 0.0, round(2.0 * shape[-1] ** -0.5, 4)]
    if "embed_tokens" in name or name.endswith("wte.weight"):
        return [shape, 0.0, embedding or (0.3 if tied else 1.0)]
    if "conv" in name:
        return [shape, 0.0, round(shape[-1] ** -0.5, 4)]
    fan_in = min(shape[-2:]) if len(shape) > 2 or "experts" in name else shape[-1]
    return [shape, 0.0, round(fan_in**-0.5, 4)]


def legacy(config: dict[str, Any]) -> dict[str, Any]:
    """rope_theta and rope_scaling in place of rope_parameters, as in older public configs."""
    config = dict(config)
    parameters = dict(config.pop("rope_parameters", None) or {})
    if parameters:
        kind = parameters.pop("rope_type", "default")
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in parameters:
                config[key] = parameters.pop(key)
        key = "type" if kind in ("yarn", "longrope", "linear") else "rope_type"
        config["rope_scaling"] = None if kind == "default" else {key: kind, **parameters}
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


def terse(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what equals the class default, rope_theta included."""
    keep = ("architectures", "model_type")
    config = {k: v for k, v in config.items() if k in keep or k not in defaults or defaults[k] != v}
    rope = config.get("rope_parameters")
    if rope and (defaults.get("rope_parameters") or {}).get("rope_theta") == rope.get("rope_theta"):
        config["rope_parameters"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    return config


def record_routes(model: torch.nn.Module, store: Routes) -> None:
    """Hooks that put every routing decision into store[module name]."""

    def experts_hook(name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            given = [v for v in [*args, *kwargs.values()] if torch.is_tensor(v)][1:]
            index = next((v for v in given if not v.is_floating_point()), None)
            weight = next((v for v in given if v.is_floating_point()), None)
            if index is not None and weight is not None:
                store[name] = (index.clone(), weight.float().clone())

        return hook

    def logits_hook(name: str, top_k: int, place: int, squash: Any) -> Callable[..., None]:
        def hook(module: Any, args: Any, out: Any) -> None:
            logits, index = out[place].topk(top_k, dim=-1)
            store[name] = (index, squash(logits))

        return hook

    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "Llama4Router":
            module.register_forward_hook(logits_hook(name, module.top_k, 1, torch.sigmoid))
        elif kind == "JetMoeTopKGating":
            squash = lambda x: x.softmax(-1)  # noqa: E731
            module.register_forward_hook(logits_hook(name, module.top_k, -1, squash))
        elif kind.endswith("Experts"):
            module.register_forward_pre_hook(experts_hook(name), with_kwargs=True)


def heaviest_first(index: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = weight.argsort(dim=-1, descending=True, stable=True)
    return index.gather(-1, order), weight.gather(-1, order)


def outputs(run: Run, ids: torch.Tensor, noise: Callable[[], Any]) -> dict[str, Any] | str:
    """The arrays of a variant, or why it is refused."""
    logits, routes = run(ids)
    if not torch.isfinite(logits).all():
        return "logits are not finite"
    row, margins = ids, []
    for _ in range(NEW):
        top = run(row)[0][:, -1].topk(2, dim=-1)
        margins.append(float((top.values[:, 0] - top.values[:, 1]).min()))
        row = torch.cat((row, top.indices[:, :1]), 1)
    full = run(row)[1]
    with noise():
        moved = float((run(ids)[0] - logits).abs().max() / logits.abs().max())
        again = run(row)[1]
    if moved > MOVED:
        return f"noise moves logits by {moved:.1e}"
    if min(margins) < MARGIN:
        return f"margin {min(margins):.4f}"
    if any((full[k][0].sort(-1).values != again[k][0].sort(-1).values).any() for k in full):
        return "an expert changes under noise"
    places = sorted({0, 1, ids.shape[1] // 2, ids.shape[1] - 2, ids.shape[1] - 1})
    pairs = [heaviest_first(*routes[name]) for name in routes]
    stacked = [
        np.stack([pair[i].reshape(*ids.shape, -1).numpy() for pair in pairs])
        if pairs else np.zeros((0, *ids.shape, 0)) for i in (0, 1)
    ]  # fmt: skip
    return {
        "input_ids": ids.numpy().astype(np.uint16), "logits": logits[:, places].numpy(),
        "experts": stacked[0].astype(np.uint8), "weights": stacked[1].astype(np.float32),
        "greedy": row[:, ids.shape[1] :].numpy().astype(np.uint16),
        "positions": places, "margin": round(min(margins), 4), "moved": float(f"{moved:.1e}"),
    }  # fmt: skip


@contextlib.contextmanager
def perturbed(tensors: list[torch.Tensor], generator: torch.Generator) -> Iterator[None]:
    """Every weight off by about one part in 1e5."""
    saved = [t.data for t in tensors]
    for t in tensors:
        if t.is_floating_point():
            t.data = t.data * (1 + 1e-5 * torch.randn(t.shape, generator=generator))
    yield
    for t, data in zip(tensors, saved, strict=True):
        t.data = data


def describe(family: str, options: dict[str, Any]) -> dict[str, Any]:
    """Config and tensors of a variant, by transformers; the seed is still to come."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(options)
    own = {k: options.pop(k) for k in list(options) if k.startswith("_")}
    config = AutoConfig.for_model(own["_type"], **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.config.dtype = own.get("_dtype", "float32")
    as_is = {"save_original_format": False} if own.get("_fused") else {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, **as_is)
        written = json.loads((Path(folder) / "config.json").read_text())
        from safetensors.torch import load_file

        state = load_file(Path(folder) / "model.safetensors")
    written = {k: v for k, v in written.items() if k not in BOOKKEEPING}
    if own.get("_terse"):
        written = terse(written, type(config)().to_dict())
    if own.get("_legacy"):
        written = legacy(written)
    written = {k: v for k, v in {**written, **own.get("_set", {})}.items() if v is not ...}
    tied = bool(getattr(config, "tie_word_embeddings", False))
    kept = {n: t for n, t in sorted(state.items()) if not DERIVED.search(n)}
    entries = {n: entry(n, t, tied, own.get("_embedding")) for n, t in kept.items()}
    more = {key: own[f"_{key}"] for key in ("more", "wrap") if f"_{key}" in own}
    return {"dtype": own.get("_dtype", "float32"), "length": own.get("_length", 24),
            "config": written, "tensors": variants.fold(entries), **more}  # fmt: skip


def run_transformers(folder: Path) -> tuple[Run, list[torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    info["missing_keys"] = [k for k in info["missing_keys"] if not DERIVED.search(k)]
    problems = {k: v for k, v in info.items() if v}
    assert not problems, f"the checkpoint does not load: {problems}"
    model.eval()
    with contextlib.suppress(AttributeError, ValueError):
        model.set_experts_implementation("eager")
    store: Routes = {}
    record_routes(model, store)

    @torch.no_grad()
    def run(row: torch.Tensor) -> tuple[torch.Tensor, Routes]:
        store.clear()
        logits = model(input_ids=row, use_cache=False).logits
        return logits.float(), dict(store)

    return run, [*model.parameters()]


def describe_deepseek_v1(options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    own = {k: options.pop(k) for k in list(options) if k.startswith("_")}
    entries = {
        name: entry(name, torch.ones(shape) if "norm" in name else torch.zeros(shape),
                    options["tie_word_embeddings"], None)
        for name, shape in sorted(deepseek_v1.shapes(options).items())
    }  # fmt: skip
    return {"dtype": own.get("_dtype", "float32"), "length": own.get("_length", 24),
            "config": options, "tensors": variants.fold(entries)}  # fmt: skip


def run_deepseek_v1(folder: Path) -> tuple[Run, list[torch.Tensor]]:
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    state = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}

    def run(row: torch.Tensor) -> tuple[torch.Tensor, Routes]:
        logits, _, routes = deepseek_v1.forward(state, config, row)
        return logits, routes

    return run, list(state.values())


def make(family: str, name: str, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A variant with a seed that gives a stable one; its arrays are under "arrays"."""
    first = family == "deepseek_v1"
    variant = describe_deepseek_v1(options) if first else describe(family, options)
    reasons = []
    for attempt in range(SEEDS):
        seed = zlib.crc32(f"{family}/{name}/{attempt}".encode())
        state = variants.weights(seed, variant["dtype"], variant["tensors"])
        variants.write(folder, variant["config"], state)
        variant |= {"seed": seed, "crc32": variants.checksum(state)}
        run, tensors = (run_deepseek_v1 if first else run_transformers)(folder)
        generator = torch.Generator().manual_seed(seed)
        table = next(n for n in variant["tensors"] if "embed_tokens" in n or "wte" in n)
        vocabulary = variant["tensors"][table][0][0]
        ids = torch.randint(3, vocabulary, (2, variant["length"]), generator=generator)
        result = outputs(run, ids, lambda t=tensors, g=generator: perturbed(t, g))
        if isinstance(result, dict):
            for key in ("positions", "margin", "moved"):
                variant[key] = result.pop(key)
            hit = [len(np.unique(e)) for e in result["experts"]]
            print(f"{family}/{name}: attempt {attempt}, std {result['logits'].std():.2f}, "
                  f"moved {variant['moved']}, margin {variant['margin']}, experts hit {hit}",
                  flush=True)  # fmt: skip
            del variant["length"]
            return {"variant": variant, "arrays": result}
        reasons.append(result)
    raise RuntimeError(f"no seed gave a stable variant: {reasons}")


def class_defaults() -> dict[str, Any]:
    """Each family's config as its class makes it when config.json says nothing."""
    from transformers import AutoConfig

    found = {}
    for family, options in FAMILIES.items():
        if family == "deepseek_v1":
            continue
        own = next(iter(options.values()))
        config = AutoConfig.for_model(own["_type"], **DEFAULTS.get(family, {})).to_dict()
        architecture = json.loads((variants.FOLDER / f"{family}.json").read_text())
        first = next(iter(architecture.values()))["config"]["architectures"]
        kept = {k: v for k, v in sorted(config.items()) if v is not None and k not in BOOKKEEPING}
        found[family] = {"architectures": first, "needed": DEFAULTS.get(family, {}), "config": kept}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*")
    parser.add_argument("--trace", action="store_true", help="stop at the first failure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    failed = []
    for family in args.families or FAMILIES:
        found, arrays = {}, {}
        for name, options in FAMILIES[family].items():
            try:
                with tempfile.TemporaryDirectory() as folder:
                    made = make(family, name, options, Path(folder))
            except Exception as error:
                if args.trace:
                    raise
                failed.append(f"{family}/{name}: {type(error).__name__}: {str(error)[:300]}")
                print("FAILED", failed[-1], flush=True)
                continue
            found[name] = made["variant"]
            arrays.update({f"{name}/{key}": value for key, value in made["arrays"].items()})
        variants.FOLDER.mkdir(exist_ok=True)
        lines = [f" {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in found.items()]
        (variants.FOLDER / f"{family}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        np.savez_compressed(variants.FOLDER / f"{family}.npz", **arrays)
        size = sum((variants.FOLDER / f"{family}.{end}").stat().st_size for end in ("json", "npz"))
        print(f"== {family}: {len(found)} variants, {size / 1e3:.0f} kB", flush=True)
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in class_defaults().items()]
    variants.DEFAULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
