# SPDX-License-Identifier: Apache-2.0
"""Reference of the first DeepSeek-MoE family (`DeepseekForCausalLM`, model_type "deepseek").

transformers has no such class, so this is a small independent one in plain PyTorch:

* Llama attention (half-rotated RoPE, no biases), RMSNorm before both blocks;
* layers below `first_k_dense_replace`, and those off the `moe_layer_freq` grid, have a dense SwiGLU;
* the others route: softmax over all experts in float32, greedy top-k; the probabilities are the
  weights as they are, or divided by (their sum + 1e-20) when `norm_topk_prob` and top_k > 1;
* `n_shared_experts` are one SwiGLU of `n_shared_experts * moe_intermediate_size`, added unweighted.

`forward(weights, config, ids)` reads weights under the names of the public checkpoints.
"""
import torch
import torch.nn.functional as F


def is_moe(config, layer):
    return (config.get("n_routed_experts") is not None and layer >= config["first_k_dense_replace"]
            and layer % config.get("moe_layer_freq", 1) == 0)


def shapes(config):
    """Name -> shape of every tensor of a checkpoint."""
    d, v = config["hidden_size"], config["vocab_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head = d // heads
    out = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (v, d)

    def swiglu(prefix, width):
        out[f"{prefix}.gate_proj.weight"] = (width, d)
        out[f"{prefix}.up_proj.weight"] = (width, d)
        out[f"{prefix}.down_proj.weight"] = (d, width)

    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        out[f"{p}.input_layernorm.weight"] = out[f"{p}.post_attention_layernorm.weight"] = (d,)
        out[f"{p}.self_attn.q_proj.weight"] = (heads * head, d)
        out[f"{p}.self_attn.k_proj.weight"] = out[f"{p}.self_attn.v_proj.weight"] = (kv * head, d)
        out[f"{p}.self_attn.o_proj.weight"] = (d, heads * head)
        if is_moe(config, i):
            out[f"{p}.mlp.gate.weight"] = (config["n_routed_experts"], d)
            for e in range(config["n_routed_experts"]):
                swiglu(f"{p}.mlp.experts.{e}", config["moe_intermediate_size"])
            if config.get("n_shared_experts"):
                swiglu(f"{p}.mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
        else:
            swiglu(f"{p}.mlp", config["intermediate_size"])
    return out


def rms_norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def swiglu(w, prefix, x):
    gate, up, down = (w[f"{prefix}.{n}_proj.weight"] for n in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def route(config, logits):
    """Selected experts and their weights, from router logits of shape (tokens, experts)."""
    weight, index = logits.softmax(-1).topk(config["num_experts_per_tok"], -1)
    if config["norm_topk_prob"] and config["num_experts_per_tok"] > 1:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return index, weight


def forward(w, config, ids):
    """Logits (batch, length, vocab), hidden states and {layer name: (experts, weights)}."""
    d, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head, eps = d // heads, config["rms_norm_eps"]
    b, t = ids.shape
    freq = 1.0 / config["rope_theta"] ** (torch.arange(0, head, 2).float() / head)
    scaling = config.get("rope_scaling")
    if scaling:
        assert scaling["type"] == "linear"
        freq = freq / scaling["factor"]
    angle = torch.outer(torch.arange(t).float(), freq).repeat(1, 2)
    cos, sin = angle.cos(), angle.sin()
    mask = torch.full((t, t), float("-inf")).triu(1)
    x, states, routes = w["model.embed_tokens.weight"][ids], [], {}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        states.append(x)
        h = rms_norm(x, w[f"{p}.input_layernorm.weight"], eps)
        q, k, v = ((h @ w[f"{p}.self_attn.{n}_proj.weight"].T).view(b, t, -1, head).transpose(1, 2) for n in "qkv")
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        a = (q @ k.transpose(2, 3) / head ** 0.5 + mask).softmax(-1) @ v
        x = x + a.transpose(1, 2).reshape(b, t, -1) @ w[f"{p}.self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{p}.post_attention_layernorm.weight"], eps)
        if not is_moe(config, i):
            x = x + swiglu(w, f"{p}.mlp", h)
            continue
        flat = h.reshape(-1, d)
        index, weight = route(config, flat @ w[f"{p}.mlp.gate.weight"].T)
        y = torch.zeros_like(flat)
        for e in range(config["n_routed_experts"]):
            token, slot = torch.where(index == e)
            if len(token):
                y[token] += swiglu(w, f"{p}.mlp.experts.{e}", flat[token]) * weight[token, slot, None]
        if config.get("n_shared_experts"):
            y = y + swiglu(w, f"{p}.mlp.shared_experts", flat)
        routes[f"{p}.mlp.experts"] = (index.view(b, t, -1), weight.view(b, t, -1))
        x = x + y.view(b, t, d)
    x = rms_norm(x, w["model.norm.weight"], eps)
    states.append(x)
    table = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return x @ table.T, states, routes
