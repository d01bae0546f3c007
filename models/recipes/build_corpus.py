# SPDX-License-Identifier: Apache-2.0
"""Build the four-domain training corpus of the demo MoE from freely licensed sources.

Every domain is a list of *documents*; the split into train and valid is made by
document (hash of the document's name), so that no document is in both.

    scripture   King James Bible, one chapter a document      (bible-kjv, public domain)
    dictionary  WordNet 3.0 glosses, 24 synsets a document    (wordnet-base, WordNet licence)
    code        Python 3.11 standard library, one module each (PSF licence)
    docs        Python 3.11 documentation, one page each      (python3.11-doc, PSF licence)

Usage:
    build_corpus.py --bible BIBLE_F_DUMP --wordnet DIR --pydoc DIR --out DIR
"""
import argparse
import hashlib
import json
import pathlib
import re
import sysconfig

BOOKS = """Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth 1_Samuel 2_Samuel
1_Kings 2_Kings 1_Chronicles 2_Chronicles Ezra Nehemiah Esther Job Psalms Proverbs
Ecclesiastes Song_of_Solomon Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos
Obadiah Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John
Acts Romans 1_Corinthians 2_Corinthians Galatians Ephesians Philippians Colossians
1_Thessalonians 2_Thessalonians 1_Timothy 2_Timothy Titus Philemon Hebrews James 1_Peter
2_Peter 1_John 2_John 3_John Jude Revelation""".split()

POS = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}

VALID_SHARE = {"scripture": 0.05, "dictionary": 0.02, "code": 0.05, "docs": 0.05}

# Generated tables, test suites and other files with little readable text.
SKIP_CODE = ("site-packages", "/test", "idlelib", "lib2to3", "encodings", "pydoc_data",
             "__pycache__", "_sysconfigdata", "config-3", "turtledemo", "ensurepip")


def scripture(dump):
    """Chapters, from lines such as 'Ge1:1 In the beginning ...'."""
    order, chapters, texts = [], [], {}
    for line in pathlib.Path(dump).read_text(encoding="latin-1").splitlines():
        m = re.match(r"((?:\d )?[A-Za-z0-9]+?)(\d+):(\d+) (.*)", line)
        if not m:
            continue
        book, chapter, verse, text = m.groups()
        if book not in order:
            order.append(book)
        key = (order.index(book), int(chapter))
        if key not in texts:
            chapters.append(key)
            texts[key] = []
        texts[key].append(f"{verse} {text.strip()}")
    assert len(order) == 66, order
    for book, chapter in chapters:
        name = f"{BOOKS[book].replace('_', ' ')} {chapter}"
        yield name, name + "\n" + "\n".join(texts[book, chapter]) + "\n"


def dictionary(folder, block=24):
    """Blocks of neighbouring synsets: 'word, synonym (noun): gloss; "example"'."""
    for pos in ("noun", "verb", "adj", "adv"):
        entries = []
        for line in (pathlib.Path(folder) / f"data.{pos}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            fields = head.split()
            count = int(fields[3], 16)
            words = [re.sub(r"\(\w+\)$", "", fields[4 + 2 * i]).replace("_", " ") for i in range(count)]
            entries.append(f"{', '.join(words)} ({POS[fields[2]]}): {gloss.strip()}")
        for i in range(0, len(entries), block):
            yield f"{pos}.{i:06d}", "\n".join(entries[i:i + block]) + "\n"


def code():
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if any(part in str(path) for part in SKIP_CODE) or not 400 <= path.stat().st_size <= 120_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield str(path.relative_to(root)), text.replace("\t", "    ")


def docs(folder):
    root = pathlib.Path(folder)
    for path in sorted(root.rglob("*.rst.txt")):
        name = str(path.relative_to(root))
        if name.startswith(("whatsnew/changelog", "c-api", "distutils")):
            continue
        yield name, path.read_text(encoding="utf-8")


def is_valid(domain, name):
    digest = int.from_bytes(hashlib.sha256(f"{domain}/{name}".encode()).digest()[:4], "big")
    return digest / 2**32 < VALID_SHARE[domain]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bible", required=True, help="output of `bible -f Genesis1:1-Revelation22:21`")
    ap.add_argument("--wordnet", required=True, help="folder of the WordNet data.* files")
    ap.add_argument("--pydoc", required=True, help="folder of the Python documentation's sources")
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    sources = {"scripture": scripture(args.bible), "dictionary": dictionary(args.wordnet),
               "code": code(), "docs": docs(args.pydoc)}
    for domain, items in sources.items():
        split = {"train": [], "valid": []}
        for name, text in items:
            split["valid" if is_valid(domain, name) else "train"].append({"name": name, "text": text})
        for part, documents in split.items():
            (out / f"{domain}.{part}.json").write_text(json.dumps(documents))
            size = sum(len(d["text"].encode()) for d in documents)
            print(f"{domain:10s} {part}: {len(documents):6d} documents {size / 1e6:7.2f} MB")


if __name__ == "__main__":
    main()
