# SPDX-License-Identifier: Apache-2.0
"""Train the demo MoE: a Qwen2-MoE shaped causal LM, small enough for two CPU cores and under an hour.

The model is written out here rather than taken from transformers, for speed on a CPU:

* token copies are sorted by expert once a layer, so that every expert does one contiguous
  matrix product; group sizes are padded to a multiple of 64, which keeps the number of
  distinct shapes (and so of compiled bfloat16 kernels) small;
* the projection to the vocabulary and the cross entropy are one chunked function;
* two single-threaded worker processes share one flat parameter buffer. Each computes the
  gradient of half of the batch, then updates half of the parameters.

`export.py` maps the weights to the Hugging Face names and checks the logits against
`Qwen2MoeForCausalLM`. The learning-rate schedule runs on time rather than on steps, so that
training ends on time whatever the speed: on running time (`--minutes`, in which a pause of the
processes hardly counts) or on wall time (`--wall-minutes`), whichever is further along.
"""
import argparse
import json
import math
import pathlib
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

DOMAINS = ("scripture", "dictionary", "code", "docs")
PAD = 64          # rows of an expert's group are padded to a multiple of this
PAUSE = 15.0      # seconds: more than this between two steps is a pause, and is not counted


@dataclass
class Config:
    vocab_size: int = 4096
    hidden_size: int = 128
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_experts: int = 16
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 192
    shared_expert_intermediate_size: int = 192
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


class Experts(torch.autograd.Function):
    """sum_k weight[n, k] * expert_{index[n, k]}(x[n]), experts being SwiGLU blocks."""

    @staticmethod
    def forward(ctx, x, weight, index, gate_up, down, dtype):
        n, k = index.shape
        experts, _, width = gate_up.shape
        flat = index.flatten()
        counts = torch.bincount(flat, minlength=experts)
        sizes = (counts + PAD - 1) // PAD * PAD
        order = flat.argsort(stable=True)
        shift = (sizes.cumsum(0) - sizes) - (counts.cumsum(0) - counts)
        place = torch.arange(n * k) + shift[flat[order]]     # row of every sorted copy
        token = torch.zeros(int(sizes.sum()), dtype=torch.long)
        token[place] = order // k                            # padding rows repeat token 0, and are never read
        back = torch.empty_like(place)
        back[order] = place
        rows = x.to(dtype).index_select(0, token)
        gate_up, down, sizes = gate_up.to(dtype), down.to(dtype), sizes.tolist()
        out, hidden = torch.empty_like(rows), torch.empty(len(rows), width, dtype=dtype)
        at = 0
        for e, size in enumerate(sizes):
            if size:
                part = slice(at, at + size)
                torch.mm(rows[part], gate_up[e], out=hidden[part])
                gate, up = hidden[part].chunk(2, -1)
                torch.mm(F.silu(gate).mul_(up), down[e], out=out[part])
                at += size
        copies = out.index_select(0, back).view(n, k, -1)
        ctx.save_for_backward(rows, hidden, copies, weight, back, gate_up, down)
        ctx.sizes = sizes
        return (copies.float() * weight[..., None]).sum(1)

    @staticmethod
    def backward(ctx, grad):
        rows, hidden, copies, weight, back, gate_up, down = ctx.saved_tensors
        n, k = weight.shape
        grad = grad.float()
        grad_weight = (grad[:, None] * copies.float()).sum(-1)
        grad_out = torch.zeros_like(rows)
        grad_out[back] = (grad[:, None] * weight[..., None]).to(rows.dtype).view(n * k, -1)
        grad_rows = torch.empty_like(rows)
        grad_gate_up, grad_down = torch.zeros_like(gate_up), torch.zeros_like(down)
        at = 0
        for e, size in enumerate(ctx.sizes):
            if not size:
                continue
            part = slice(at, at + size)
            gate, up = hidden[part].chunk(2, -1)
            s = torch.sigmoid(gate)
            act = gate * s
            grad_act = grad_out[part] @ down[e].t()
            torch.mm((act * up).t(), grad_out[part], out=grad_down[e])
            grad_hidden = torch.cat((grad_act * up * (s + act * (1 - s)), grad_act * act), -1)
            torch.mm(rows[part].t(), grad_hidden, out=grad_gate_up[e])
            torch.mm(grad_hidden, gate_up[e].t(), out=grad_rows[part])
            at += size
        grad_x = grad_rows.index_select(0, back).view(n, k, -1).float().sum(1)
        return grad_x, grad_weight, None, grad_gate_up.float(), grad_down.float(), None


class VocabularyLoss(torch.autograd.Function):
    """Mean cross entropy of h @ table.T, with its gradient found chunk by chunk on the way."""

    @staticmethod
    def forward(ctx, h, table, targets, dtype, chunk=512):
        low, weights = h.to(dtype), table.to(dtype)
        grad_h, grad_table, loss = torch.empty_like(low), torch.zeros_like(table), 0.0
        for at in range(0, len(low), chunk):
            part, want = low[at:at + chunk], targets[at:at + chunk, None]
            logits = (part @ weights.t()).float()
            logp = F.log_softmax(logits, -1)
            loss = loss - logp.gather(1, want).sum()
            p = logp.exp_().scatter_add_(1, want, torch.full(want.shape, -1.0))
            p = p.mul_(1 / len(low)).to(dtype)
            grad_h[at:at + chunk] = p @ weights
            grad_table += p.t() @ part
        ctx.save_for_backward(grad_h, grad_table)
        return loss / len(low)

    @staticmethod
    def backward(ctx, grad):
        grad_h, grad_table = ctx.saved_tensors
        return grad_h.float() * grad, grad_table * grad, None, None, None


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv = c.num_attention_heads, c.num_key_value_heads
        self.head_dim = c.hidden_size // self.heads
        self.qkv = nn.Linear(c.hidden_size, (self.heads + 2 * self.kv) * self.head_dim)
        self.o = nn.Linear(self.heads * self.head_dim, c.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        qkv = self.qkv(x).view(b, t, self.heads + 2 * self.kv, self.head_dim).transpose(1, 2)
        qk, v = qkv.split([self.heads + self.kv, self.kv], dim=1)
        qk = rotate(qk, cos.to(qk.dtype), sin.to(qk.dtype))
        q, k = qk.split([self.heads, self.kv], dim=1)
        rep = self.heads // self.kv
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f, e = c.hidden_size, c.moe_intermediate_size, c.num_experts
        self.top_k, self.experts = c.num_experts_per_tok, e
        self.router = nn.Parameter(torch.empty(e, d))
        self.gate_up = nn.Parameter(torch.empty(e, d, 2 * f))
        self.down = nn.Parameter(torch.empty(e, f, d))
        self.shared_gate_up = nn.Linear(d, 2 * c.shared_expert_intermediate_size, bias=False)
        self.shared_down = nn.Linear(c.shared_expert_intermediate_size, d, bias=False)
        self.shared_gate = nn.Linear(d, 1, bias=False)

    def forward(self, x, dtype):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(x, self.router)
        probs = logits.softmax(-1)
        weight, index = probs.topk(self.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        y = Experts.apply(x, weight, index, self.gate_up, self.down, dtype)
        gate, up = self.shared_gate_up(x).chunk(2, -1)
        y = y + torch.sigmoid(self.shared_gate(x)) * self.shared_down(F.silu(gate) * up)
        # Load balance (share of copies x mean probability, 1.0 when even) and router z-loss.
        share = torch.bincount(index.flatten(), minlength=self.experts).float() / index.numel()
        balance = self.experts * (share * probs.mean(0)).sum()
        z = logits.logsumexp(-1).square().mean()
        return y.view(shape), balance, z, (index, weight)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1 = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.attn = Attention(c)
        self.norm2 = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.moe = MoE(c)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        dim = c.hidden_size // c.num_attention_heads
        freq = 1.0 / c.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), freq).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.dim() > 1:
                fan_in = p.shape[1]                      # (out, in) and (experts, in, out) alike
                std = 0.02 if name.startswith("embed") or "router" in name else 0.7 * fan_in ** -0.5
                if name.endswith(("o.weight", "down", "shared_down.weight")):
                    std /= math.sqrt(2 * c.num_hidden_layers)
                nn.init.normal_(p, std=std)

    def forward(self, ids, targets=None, dtype=torch.float32):
        """Loss, load balance and z-loss; without targets, logits and (experts, weights) of each layer."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            x = self.embed(ids)
            t = ids.shape[1]
            balance = z = 0.0
            routes = []
            for layer in self.layers:
                x = x + layer.attn(layer.norm1(x), self.cos[:t], self.sin[:t])
                y, b, zl, route = layer.moe(layer.norm2(x), dtype)
                x = x + y
                balance, z = balance + b, z + zl
                routes.append(route)
            x = self.norm(x)
        if targets is None:
            return F.linear(x, self.embed.weight), routes
        loss = VocabularyLoss.apply(x.flatten(0, 1), self.embed.weight, targets.flatten(), dtype)
        return loss, balance / len(self.layers), z / len(self.layers)


class Windows:
    """Windows of one domain's token stream, each epoch in a new order and at a new phase."""

    def __init__(self, tokens, rng):
        self.tokens, self.rng, self.queue, self.length, self.used = tokens, rng, [], 0, 0

    def next(self, length):
        if not len(self.queue) or length != self.length:
            self.length = length
            self.queue = list(self.rng.permutation(
                np.arange(self.rng.integers(length), len(self.tokens) - length - 1, length)))
        start = self.queue.pop()
        self.used += length
        return self.tokens[start:start + length + 1].astype(np.int64)


@torch.no_grad()
def evaluate(model, corpus, tokens_per_byte, length=512, limit=24, dtype=torch.bfloat16):
    """Bits per byte of each domain's validation stream (the first `limit` windows)."""
    result = {}
    for domain in DOMAINS:
        tokens = np.load(corpus / f"{domain}.valid.npy").astype(np.int64)
        count = min(limit, (len(tokens) - 1) // length)
        batch = np.stack([tokens[i * length:i * length + length + 1] for i in range(count)])
        loss = 0.0
        for part in np.array_split(batch, max(1, count // 8)):
            part = torch.from_numpy(part)
            loss += model(part[:, :-1], part[:, 1:], dtype)[0].item() * len(part) / count
        result[domain] = loss / math.log(2) * tokens_per_byte[domain]
    return result


def worker(rank, args, flat, grads, moments, stats, barrier):
    torch.set_num_threads(1)
    corpus, out = pathlib.Path(args.corpus), pathlib.Path(args.out)
    rng = np.random.default_rng(args.seed * 100 + rank)
    mix = np.array([float(v) for v in args.mix.split(",")])
    mix /= mix.sum()
    streams = [Windows(np.load(corpus / f"{d}.train.npy"), rng) for d in DOMAINS]
    tokens_per_byte = {}
    for d in DOMAINS:
        size = sum(len(x["text"].encode()) for x in json.loads((corpus / f"{d}.valid.json").read_text()))
        tokens_per_byte[d] = len(np.load(corpus / f"{d}.valid.npy")) / size
    dtype = torch.float32 if args.fp32 else torch.bfloat16

    # Every parameter is a view of the shared buffer, and its gradient one of this worker's.
    model = Model(Config())
    decay = torch.zeros_like(flat)
    at = 0
    for name, p in model.named_parameters():
        end = at + p.numel()
        p.data = flat[at:end].view_as(p)
        p.grad = grads[rank, at:end].view_as(p)
        decay[at:end] = 0.1 * (p.dim() > 1 and "embed" not in name)
        at = end
    lo, hi = rank * len(flat) // args.workers, (rank + 1) * len(flat) // args.workers
    mine, decay = flat[lo:hi], decay[lo:hi]
    m, v, beta1, beta2 = moments[0, lo:hi], moments[1, lo:hi], 0.9, 0.95

    step = seen = updates = 0
    begin = 0.0
    if args.resume:
        saved = torch.load(args.resume, weights_only=True)
        step, seen, begin = saved["step"], saved["tokens"], saved.get("progress", args.resume_progress)
        if "adam" in saved:
            m.copy_(saved["adam"][0, lo:hi])
            v.copy_(saved["adam"][1, lo:hi])
            updates = saved["updates"]
    start = last = tick = time.time()
    running, average, next_eval = 0.0, None, begin + 0.08
    share = args.tokens_per_step // args.workers
    while True:
        now = time.time()
        running, tick = running + min(now - tick, PAUSE), now
        done = max(running / args.minutes, (now - start) / args.wall_minutes) / 60
        stats[rank, 3] = begin + (1 - begin) * done
        barrier.wait()
        progress = stats[0, 3].item()
        if rank == 0 and progress >= next_eval and progress < 0.97:
            bits = evaluate(model, corpus, tokens_per_byte)
            print("valid bits per byte: " + " ".join(f"{k} {v:.3f}" for k, v in bits.items()), flush=True)
            torch.save({"config": asdict(model.config), "model": model.state_dict(), "step": step,
                        "tokens": seen, "valid": bits, "progress": progress, "updates": updates,
                        "adam": moments}, out / "model.pt.new")
            (out / "model.pt.new").rename(out / "model.pt")
            next_eval += 0.1
        if progress >= 1:
            break
        lr = args.lr * min(1, (updates + 1) / args.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        length = 256 if progress < args.stages[0] else 512 if progress < args.stages[1] else 1024
        picks = rng.choice(len(DOMAINS), size=share // length, p=mix)
        batch = torch.from_numpy(np.stack([streams[i].next(length) for i in picks]))
        grads[rank].zero_()
        loss, balance, z = model(batch[:, :-1], batch[:, 1:], dtype)
        (loss + args.balance * balance + args.z * z).backward()
        stats[rank, :3] = torch.tensor([loss.item(), balance.item(), z.item()], dtype=torch.float64)
        barrier.wait()
        g = grads[:, lo:hi].mean(0)
        stats[rank, 4] = g.square().sum().item()
        barrier.wait()
        norm = stats[:, 4].sum().sqrt().item()
        if math.isfinite(norm):
            updates += 1
            g *= min(1.0, 1.0 / (norm + 1e-6))
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            scale = (v / (1 - beta2 ** updates)).sqrt_().add_(1e-9)
            mine.mul_(1 - lr * decay).addcdiv_(m, scale, value=-lr / (1 - beta1 ** updates))
        elif rank == 0:
            print(f"step {step}: gradient not finite, skipped", flush=True)
        step, seen = step + 1, seen + args.tokens_per_step
        now = stats[:, 0].mean().item()
        average = now if average is None else 0.97 * average + 0.03 * now
        if rank == 0 and step % 50 == 0:
            speed, last = 50 * args.tokens_per_step / (time.time() - last), time.time()
            print(f"step {step:5d} {progress:6.1%} loss {average:.3f} balance {balance.item():.2f} "
                  f"z {z.item():.2f} norm {norm:.2f} lr {lr:.1e} {speed:.0f} tokens/s", flush=True)
    stats[rank, 5:] = torch.tensor([s.used / len(s.tokens) for s in streams], dtype=torch.float64)
    barrier.wait()
    if rank == 0:
        bits = evaluate(model, corpus, tokens_per_byte, limit=10**6)
        epochs = {d: round(e, 2) for d, e in zip(DOMAINS, stats[:, 5:].sum(0).tolist())}
        torch.save({"config": asdict(model.config), "model": model.state_dict(), "step": step, "tokens": seen,
                    "valid": bits, "epochs": epochs, "mix": dict(zip(DOMAINS, mix.tolist())),
                    "args": vars(args)}, out / "model.pt")
        print("final valid bits per byte: " + " ".join(f"{k} {v:.3f}" for k, v in bits.items()))
        print(f"{step} steps, {seen:,} tokens, epochs {epochs}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--minutes", type=float, default=50, help="running time")
    ap.add_argument("--wall-minutes", type=float, default=1e9, help="limit of the wall time")
    ap.add_argument("--resume", help="a model.pt to go on from")
    ap.add_argument("--resume-progress", type=float, default=0.0, help="its progress, where it does not say")
    ap.add_argument("--warmup", type=int, default=150, help="updates over which the learning rate rises")
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--tokens-per-step", type=int, default=6144)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--fp32", action="store_true", help="train in float32 rather than bfloat16 products")
    ap.add_argument("--balance", type=float, default=0.01)
    ap.add_argument("--z", type=float, default=1e-3)
    ap.add_argument("--mix", default="0.22,0.30,0.20,0.28", help="share of each domain in a batch")
    ap.add_argument("--stages", type=float, nargs=2, default=(0.5, 0.88),
                    help="windows are of 256 tokens, of 512 from the first part of the run on, of 1024 from the second")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    model = Model(Config())
    if args.resume:
        model.load_state_dict(torch.load(args.resume, weights_only=True)["model"])
    flat = torch.cat([p.detach().flatten() for p in model.parameters()]).share_memory_()
    grads = torch.zeros(args.workers, len(flat)).share_memory_()
    moments = torch.zeros(2, len(flat)).share_memory_()
    stats = torch.zeros(args.workers, 5 + len(DOMAINS), dtype=torch.float64).share_memory_()
    print(f"{len(flat):,} parameters", flush=True)
    context = mp.get_context("spawn")
    barrier = context.Barrier(args.workers)
    mp.spawn(worker, (args, flat, grads, moments, stats, barrier), nprocs=args.workers)


if __name__ == "__main__":
    main()
