"""The tokens that the official code was trained on: Moses, then a joint BPE with 10,000 merges by subword-nmt.

pip install sacremoses subword-nmt
python examples/multi30k/prepare.py data/multi30k data/multi30k_bpe

`dict.txt` has the frequencies of the training tokens, padded as by fairseq: with 4 special tokens, a multiple of 8.
"""

import argparse
import gzip
import io
from collections import Counter
from pathlib import Path

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from residual_hf.data.text_files import iter_lines

PARTS, LANGUAGES, MERGES = ("train", "val", "test_2016_flickr"), ("en", "de"), 10_000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=Path, help="raw text: train.en.gz, train.de.gz, val.en.gz, ...")
parser.add_argument("output", type=Path)
options = parser.parse_args()
if options.output.exists():
    parser.error(f"{options.output} exists")
options.output.mkdir(parents=True)


def tokenized(part: str, language: str) -> list[str]:
    normalizer = MosesPunctNormalizer(language, norm_quote_commas=False)
    tokenizer = MosesTokenizer(language)
    lines = (normalizer.normalize(line).strip() for line in iter_lines(options.folder / f"{part}.{language}.gz"))
    return [tokenizer.tokenize(line, aggressive_dash_splits=True, escape=False, return_str=True) for line in lines]


texts = {(part, language): tokenized(part, language) for part in PARTS for language in LANGUAGES}
words = Counter(word for language in LANGUAGES for line in texts["train", language] for word in line.split())
codes = io.StringIO()
learn_bpe([f"{word} {count}" for word, count in words.items()], codes, MERGES, is_dict=True)
(options.output / "bpe_codes").write_text(codes.getvalue(), encoding="utf-8")
codes.seek(0)
bpe = BPE(codes)
tokens: Counter[str] = Counter()
for (part, language), lines in texts.items():
    segmented = [bpe.process_line(line) for line in lines]
    with gzip.open(options.output / f"{part}.bpe.{language}.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in segmented)
    if part == "train":
        tokens.update(token for line in segmented for token in line.split())
ranked = sorted(tokens.items(), key=lambda item: (-item[1], item[0]))
ranked += [(f"madeupword{number:04}", 0) for number in range(-(len(ranked) + 4) % 8)]
(options.output / "dict.txt").write_text("".join(f"{token} {count}\n" for token, count in ranked), encoding="utf-8")
