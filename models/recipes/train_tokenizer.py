# SPDX-License-Identifier: Apache-2.0
"""Train the byte-level BPE tokenizer (4096 entries) of the demo MoE and tokenise the corpus.

All 256 bytes are in the initial alphabet, so every text round-trips and nothing maps to 'unk'.
"""
import argparse
import json
import pathlib
import random

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
DOMAINS = ("scripture", "dictionary", "code", "docs")
# The pre-tokenizer expression of the Qwen2 family: letters with one leading mark,
# single digits, runs of punctuation, line ends, other white space.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--sample-bytes", type=int, default=3_500_000, help="bytes of each domain to learn merges from")
    args = ap.parse_args()
    corpus, out = pathlib.Path(args.corpus), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    documents = {(d, p): json.loads((corpus / f"{d}.{p}.json").read_text())
                 for d in DOMAINS for p in ("train", "valid")}

    rng = random.Random(0)
    sample = []
    for domain in DOMAINS:
        texts = [d["text"] for d in documents[domain, "train"]]
        rng.shuffle(texts)
        size = 0
        for text in texts:
            if size > args.sample_bytes:
                break
            sample.append(text)
            size += len(text)

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.train_from_iterator(sample, trainers.BpeTrainer(
        vocab_size=args.vocab, special_tokens=[EOT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    assert tok.get_vocab_size() == args.vocab
    tok.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "add_prefix_space": False,
        "added_tokens_decoder": {"0": {"content": EOT, "lstrip": False, "normalized": False,
                                       "rstrip": False, "single_word": False, "special": True}},
        "bos_token": EOT, "eos_token": EOT, "pad_token": None, "unk_token": None,
        "clean_up_tokenization_spaces": False, "model_max_length": 1024,
        "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n")
    (out / "special_tokens_map.json").write_text(json.dumps({"bos_token": EOT, "eos_token": EOT}, indent=2) + "\n")

    eot = tok.token_to_id(EOT)
    for (domain, part), docs in documents.items():
        ids, size = [], 0
        for doc, enc in zip(docs, tok.encode_batch([d["text"] for d in docs])):
            ids += [eot] + enc.ids
            size += len(doc["text"].encode())
        np.save(corpus / f"{domain}.{part}.npy", np.array(ids + [eot], dtype=np.uint16))
        print(f"{domain:10s} {part}: {len(ids):8d} tokens, {size / len(ids):.2f} bytes a token", flush=True)


if __name__ == "__main__":
    main()
