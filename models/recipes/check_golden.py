# SPDX-License-Identifier: Apache-2.0
"""Load golden checkpoints anew, with transformers' default attention and expert kernels, and compare the logits.

Usage:  check_golden.py FOLDER [FOLDER ...]     each a checkpoint folder
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file

import deepseek_v1


def logits_of(folder, reference):
    ids = torch.from_numpy(reference["input_ids"]).long()
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "deepseek":
        weights = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        return deepseek_v1.forward(weights, config, ids)[0]
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    if "encoder_input_ids" in reference:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
        return model(torch.from_numpy(reference["encoder_input_ids"]).long(), decoder_input_ids=ids).logits
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(ids).logits


def main():
    worst = 0.0
    for folder in map(pathlib.Path, sys.argv[1:]):
        reference = np.load(folder / "reference.npz")
        with torch.no_grad():
            difference = np.abs(logits_of(folder, reference).float().numpy() - reference["logits"]).max()
        allowed = json.loads((folder / "notes.json").read_text())["logits_moved_by_1e_5_weight_noise"]
        worst = max(worst, difference / allowed)
        print(f"{folder.name:20s} largest logit difference {difference:.1e}, of {allowed:.1e} allowed", flush=True)
    raise SystemExit(worst > 1)


if __name__ == "__main__":
    main()
