# SPDX-License-Identifier: Apache-2.0
"""Export the trained demo MoE in the Hugging Face layout, with reference outputs.

The float32 weights are first checked: `Qwen2MoeForCausalLM` must give the logits of the training
model to 1e-4. They are then rounded to bfloat16 and saved, and everything under reference/ is
computed by transformers in float32 from the saved files:

    reference/prompts.json     the prompts, their token ids and greedy continuations
    reference/prompts.npz      for prompt i:  ids_i (T)  top_ids_i, top_logits_i (T, 32)  logsumexp_i (T)
                               last_logits_i (vocab)  experts_i, weights_i (layers, T, top_k)
                               greedy_i (48)  greedy_margin_i (48): logit of the choice less the runner-up's
    reference/valid_*.txt      held-out text of each domain
    reference/calibration.txt  training text of all domains, 40,000 bytes each (colibri pack --calibrate)
    reference/perplexity.json  its perplexity: the text is tokenised whole, without added tokens, and cut
                               into windows of 512; in each, tokens 2 and on are predicted
    reference/experts.json     how often each expert is selected, by layer and domain

README.md, the model card, is written from the same figures.
"""
import argparse
import json
import math
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file

from train import DOMAINS, Config, Model

WINDOW = 512
PROMPTS = [
    ("scripture", "Psalms 151\n1 Praise ye the LORD"),
    ("scripture", "And it came to pass in those days, that the king"),
    ("dictionary", "lantern, lamp (noun):"),
    ("dictionary", "walk slowly (verb): move on foot"),
    ("code", "import os\nimport sys\n\n\ndef read_file(path, encoding=None):\n    \"\"\"Return"),
    ("code", "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n"),
    ("docs", "This module provides a simple way to"),
    ("docs", ".. function:: open(file, mode='r')\n\n   Open *file* and return"),
]


def hugging_face_weights(state, c):
    """The training model's parameters under the names and shapes of Qwen2MoeForCausalLM checkpoints."""
    out = {"model.embed_tokens.weight": state["embed.weight"], "model.norm.weight": state["norm.weight"]}
    head = c.hidden_size // c.num_attention_heads
    rows = [c.num_attention_heads * head, c.num_key_value_heads * head, c.num_key_value_heads * head]
    width, shared = c.moe_intermediate_size, c.shared_expert_intermediate_size
    for i in range(c.num_hidden_layers):
        a, b = f"layers.{i}.", f"model.layers.{i}."
        out[b + "input_layernorm.weight"] = state[a + "norm1.weight"]
        out[b + "post_attention_layernorm.weight"] = state[a + "norm2.weight"]
        for part in ("weight", "bias"):
            for name, tensor in zip("qkv", state[a + f"attn.qkv.{part}"].split(rows)):
                out[b + f"self_attn.{name}_proj.{part}"] = tensor
        out[b + "self_attn.o_proj.weight"] = state[a + "attn.o.weight"]
        out[b + "mlp.gate.weight"] = state[a + "moe.router"]
        for e in range(c.num_experts):
            gate_up = state[a + "moe.gate_up"][e].t()
            out[b + f"mlp.experts.{e}.gate_proj.weight"] = gate_up[:width]
            out[b + f"mlp.experts.{e}.up_proj.weight"] = gate_up[width:]
            out[b + f"mlp.experts.{e}.down_proj.weight"] = state[a + "moe.down"][e].t()
        gate_up = state[a + "moe.shared_gate_up.weight"]
        out[b + "mlp.shared_expert.gate_proj.weight"] = gate_up[:shared]
        out[b + "mlp.shared_expert.up_proj.weight"] = gate_up[shared:]
        out[b + "mlp.shared_expert.down_proj.weight"] = state[a + "moe.shared_down.weight"]
        out[b + "mlp.shared_expert_gate.weight"] = state[a + "moe.shared_gate.weight"]
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def hugging_face_config(c):
    return {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "intermediate_size": c.moe_intermediate_size,
        "num_hidden_layers": c.num_hidden_layers, "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads, "hidden_act": "silu", "qkv_bias": True,
        "max_position_embeddings": c.max_position_embeddings, "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta, "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "tie_word_embeddings": True, "attention_dropout": 0.0, "use_sliding_window": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_tok, "norm_topk_prob": True,
        "moe_intermediate_size": c.moe_intermediate_size,
        "shared_expert_intermediate_size": c.shared_expert_intermediate_size,
        "router_aux_loss_coef": 0.01, "output_router_logits": False, "initializer_range": 0.02,
        "bos_token_id": 0, "eos_token_id": 0, "use_cache": True, "torch_dtype": "bfloat16",
    }


def write_checkpoint(folder, weights, config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, "temperature": 0.8, "top_p": 0.95}, indent=2) + "\n")


def load(folder):
    from transformers import Qwen2MoeForCausalLM
    model = Qwen2MoeForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.set_experts_implementation("eager")
    return model


class Routes:
    """Records (experts, weights) of each MoE layer during a forward pass."""

    def __init__(self, model):
        self.seen = []
        for layer in model.model.layers:
            layer.mlp.gate.register_forward_hook(lambda m, a, out: self.seen.append((out[2], out[1])))

    def take(self):
        experts, weights = (torch.stack(v) for v in zip(*self.seen))
        self.seen = []
        return experts, weights


@torch.no_grad()
def prompts(model, routes, tokenizer, folder):
    arrays, entries = {}, []
    for i, (domain, text) in enumerate(PROMPTS):
        ids = torch.tensor([tokenizer.encode(text).ids])
        routes.seen = []
        logits = model(ids, use_cache=False).logits[0]
        experts, weights = routes.take()
        top = logits.topk(32, dim=-1)
        arrays |= {f"ids_{i}": ids[0].int(), f"top_ids_{i}": top.indices.int(), f"top_logits_{i}": top.values,
                   f"logsumexp_{i}": logits.logsumexp(-1), f"last_logits_{i}": logits[-1],
                   f"experts_{i}": experts.int(), f"weights_{i}": weights}
        row, margin = ids, []
        for _ in range(48):
            best = model(row, use_cache=False).logits[0, -1].topk(2)
            margin.append(best.values[0] - best.values[1])
            row = torch.cat((row, best.indices[None, :1]), 1)
        routes.seen = []
        greedy = row[0, ids.shape[1]:]
        arrays |= {f"greedy_{i}": greedy.int(), f"greedy_margin_{i}": torch.stack(margin)}
        entries.append({"domain": domain, "prompt": text, "ids": ids[0].tolist(), "greedy_ids": greedy.tolist(),
                        "greedy_text": tokenizer.decode(greedy.tolist(), skip_special_tokens=False)})
    np.savez_compressed(folder / "prompts.npz", **{k: v.numpy() for k, v in arrays.items()})
    (folder / "prompts.json").write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    return entries


def some_text(documents, limit):
    """Whole documents, in a mixed but fixed order, up to about `limit` bytes (the last one cut at a line end)."""
    order = np.random.default_rng(3).permutation(len(documents))
    text = ""
    for i in order:
        room = limit - len(text.encode())
        if room < 500:
            break
        piece = documents[i]["text"]
        if len(piece.encode()) > min(room, limit // 2):
            piece = piece.encode()[:min(room, limit // 2)].decode(errors="ignore")
            piece = piece[:piece.rfind("\n") + 1]
        text += piece.rstrip("\n") + "\n\n"
    return text


@torch.no_grad()
def perplexity(model, routes, tokenizer, text, config):
    ids = tokenizer.encode(text).ids
    nll, count = 0.0, 0
    usage = torch.zeros(config.num_hidden_layers, config.num_experts)
    for at in range(0, len(ids), WINDOW):
        window = torch.tensor([ids[at:at + WINDOW]])
        if window.shape[1] < 2:
            break
        routes.seen = []
        logits = model(window, use_cache=False).logits[0]
        experts, _ = routes.take()
        nll -= logits[:-1].log_softmax(-1).gather(1, window[0, 1:, None]).sum().item()
        count += window.shape[1] - 1
        for layer, chosen in enumerate(experts):
            usage[layer] += torch.bincount(chosen.flatten(), minlength=config.num_experts)
    size = len(text.encode())
    return {"bytes": size, "tokens": len(ids), "predicted_tokens": count, "nll_sum": nll,
            "perplexity": math.exp(nll / count),
            "bits_per_byte": nll / math.log(2) / count * len(ids) / size}, usage


def entropy(p):
    p = p / p.sum(-1, keepdim=True)
    return -(p * p.clamp(min=1e-12).log2()).sum(-1)


@torch.no_grad()
def sample(model, tokenizer, text, count=60, temperature=0.8, top_p=0.95, seed=5):
    row, generator = torch.tensor([tokenizer.encode(text).ids]), torch.Generator().manual_seed(seed)
    start = row.shape[1]
    for _ in range(count):
        p, ids = (model(row, use_cache=False).logits[0, -1] / temperature).softmax(-1).sort(descending=True)
        p = p * (p.cumsum(0) - p < top_p)
        row = torch.cat((row, ids[p.multinomial(1, generator=generator)][None]), 1)
    return tokenizer.decode(row[0, start:].tolist(), skip_special_tokens=False)


CARD = """# demo-moe

A small mixture-of-experts language model, trained from scratch to be the built-in demonstration model: big
enough to have real routing, real text statistics and a real loss that quantisation can hurt, small enough for a
microcontroller. It babbles in the manner of its four domains; it knows nothing, and is no use as an assistant.

| | |
| --- | --- |
| class | `Qwen2MoeForCausalLM` (Hugging Face layout, bfloat16) |
| parameters | {parameters:,} in all, {active:,} active a token, the tied embedding included |
| shape | {layers} layers, hidden {hidden}, {heads} heads ({kv} key-value heads) of {head}, RoPE theta {theta:.0f} |
| experts | {experts} routed of width {width}, top {top_k}, weights normalised; one sigmoid-gated shared expert of width {shared} |
| context | {context} tokens (trained on windows of 256, then 512, then 1024) |
| tokenizer | byte-level BPE, {vocab} entries, `<|endoftext|>` (0) before every document and at the end; no text is unencodable |
| files | model.safetensors {size:.1f} MB |

## Data

{data}

`LICENSES.md` has the licences. The split is by document, so no validation document was trained on.

## Training

{tokens:,} tokens in {steps:,} steps on two CPU cores: AdamW, cosine schedule, a load-balancing loss (0.01) and a router
z-loss (0.001) on every layer. {note}

## Figures

On the held-out texts in `reference/` (windows of 512 tokens, float32 arithmetic on the bfloat16 weights):

{figures}

How even the choice of experts is (entropy in bits, at most {most:.0f}; by layer), and how much the expert chosen tells of the
domain (mutual information in bits, by layer):

{usage}

## Samples

Temperature 0.8, top-p 0.95, 60 tokens.

{samples}

## Reference outputs

`reference/` holds what transformers computes from these files in float32: logits, selected experts and their weights
for eight prompts, greedy continuations of 48 tokens with the margin of every choice, and the held-out texts with their
perplexity. `recipes/export.py` says what each array is.
"""


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True, help="folder with model.pt")
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--note", default="", help="a sentence on the training for the model card")
    args = ap.parse_args()
    from tokenizers import Tokenizer
    torch.set_num_threads(1)
    out, corpus = pathlib.Path(args.out), pathlib.Path(args.corpus)
    saved = torch.load(pathlib.Path(args.run) / "model.pt", weights_only=True)
    config = Config(**saved["config"])
    weights = hugging_face_weights(saved["model"], config)

    # The exported model must be the trained one.
    scratch = out / "float32-check"
    write_checkpoint(scratch, weights, {**hugging_face_config(config), "torch_dtype": "float32"})
    reference = load(scratch)
    model = Model(config)
    model.load_state_dict(saved["model"])
    ids = torch.randint(0, config.vocab_size, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (reference(ids, use_cache=False).logits - model(ids)[0]).abs().max().item()
    print(f"largest logit difference to the training model: {difference:.2e}")
    assert difference < 1e-4
    shutil.rmtree(scratch)
    del reference

    write_checkpoint(out, {k: v.to(torch.bfloat16) for k, v in weights.items()}, hugging_face_config(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(pathlib.Path(args.tokenizer) / name, out / name)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = load(out)
    routes = Routes(model)
    folder = out / "reference"
    folder.mkdir(exist_ok=True)

    for entry in prompts(model, routes, tokenizer, folder):
        print(f"--- {entry['domain']}: {entry['prompt']!r}\n    {entry['greedy_text']!r}")
    (folder / "calibration.txt").write_text("".join(
        some_text(json.loads((corpus / f"{domain}.train.json").read_text()), 40_000) for domain in DOMAINS),
        encoding="utf-8", newline="")
    measured, used = {}, {}
    for domain in DOMAINS:
        text = some_text(json.loads((corpus / f"{domain}.valid.json").read_text()), 40_000)
        (folder / f"valid_{domain}.txt").write_text(text, encoding="utf-8", newline="")
        measured[domain], used[domain] = perplexity(model, routes, tokenizer, text, config)
        print(domain, {k: round(v, 3) for k, v in measured[domain].items()})
    (folder / "perplexity.json").write_text(json.dumps(
        {"window": WINDOW, "weights": "bfloat16, computed in float32", "domains": measured}, indent=1) + "\n")

    share = torch.stack([used[d] / used[d].sum(-1, keepdim=True) for d in DOMAINS])     # (domain, layer, expert)
    mixed = share.mean(0)
    information = entropy(mixed) - entropy(share).mean(0)
    (folder / "experts.json").write_text(json.dumps({
        "experts": config.num_experts, "top_k": config.num_experts_per_tok,
        "entropy_bits": {d: [round(v, 3) for v in entropy(s).tolist()] for d, s in zip(DOMAINS, share)},
        "entropy_bits_all_domains": [round(v, 3) for v in entropy(mixed).tolist()],
        "information_about_domain_bits": [round(v, 3) for v in information.tolist()],
        "share": {d: [[round(v, 4) for v in row] for row in s.tolist()] for d, s in zip(DOMAINS, share)}}) + "\n")
    for d, s in zip(DOMAINS, share):
        print(f"{d:10s} entropy of expert choice by layer (bits, at most {math.log2(config.num_experts):.0f}): "
              + " ".join(f"{v:.2f}" for v in entropy(s).tolist()) + f"  largest share {s.max():.2f}")
    print("all        " + " ".join(f"{v:.2f}" for v in entropy(mixed).tolist())
          + "  least share " + f"{mixed.min():.4f}; information about the domain: "
          + " ".join(f"{v:.2f}" for v in information.tolist()))
    print({k: saved.get(k) for k in ("step", "tokens", "valid", "epochs")})

    c = config
    parameters = sum(v.numel() for v in weights.values())
    expert = 3 * c.hidden_size * c.moe_intermediate_size
    rows = ["| domain | train MB | train tokens | share of a batch | epochs |", "| --- | --- | --- | --- | --- |"]
    for d in DOMAINS:
        size = sum(len(x["text"].encode()) for x in json.loads((corpus / f"{d}.train.json").read_text()))
        tokens = len(np.load(corpus / f"{d}.train.npy", mmap_mode="r"))
        share_of_batch = (saved.get("mix") or {}).get(d, float("nan"))
        rows.append(f"| {d} | {size / 1e6:.1f} | {tokens:,} | {share_of_batch:.2f} "
                    f"| {share_of_batch * saved['tokens'] / tokens:.2f} |")
    figures = ["| domain | bits per byte | perplexity a token |", "| --- | --- | --- |"]
    figures += [f"| {d} | {m['bits_per_byte']:.3f} | {m['perplexity']:.2f} |" for d, m in measured.items()]
    usage = ["| | " + " | ".join(str(i) for i in range(c.num_hidden_layers)) + " |",
             "| --- |" + " --- |" * c.num_hidden_layers]
    for name, values in [*((d, entropy(s)) for d, s in zip(DOMAINS, share)), ("all four alike", entropy(mixed)),
                         ("information about the domain", information)]:
        usage.append(f"| {name} | " + " | ".join(f"{v:.2f}" for v in values.tolist()) + " |")
    samples = []
    for domain, text in PROMPTS[::2]:
        words = sample(model, tokenizer, text)
        print(f"--- sample, {domain}: {text!r}\n    {words!r}")
        prompt = text.replace("\n", "\\n")
        samples.append(f"{domain}, after `{prompt}`:\n\n" + "\n".join("    " + line for line in words.splitlines()))
    (out / "README.md").write_text(CARD.format(
        parameters=parameters, layers=c.num_hidden_layers, hidden=c.hidden_size, heads=c.num_attention_heads,
        active=parameters - c.num_hidden_layers * (c.num_experts - c.num_experts_per_tok) * expert,
        kv=c.num_key_value_heads, head=c.hidden_size // c.num_attention_heads, theta=c.rope_theta, experts=c.num_experts,
        width=c.moe_intermediate_size, top_k=c.num_experts_per_tok, shared=c.shared_expert_intermediate_size,
        context=c.max_position_embeddings, vocab=c.vocab_size, size=(out / "model.safetensors").stat().st_size / 1e6,
        data="\n".join(rows), tokens=saved["tokens"], steps=saved["step"], note=args.note, figures="\n".join(figures),
        usage="\n".join(usage), most=math.log2(c.num_experts), samples="\n\n".join(samples)), encoding="utf-8")
    for path in out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
