"""Scores of translations as papers on Multi30k print them: sacreBLEU, and BLEU of Moses-tokenized text.

pip install sacremoses
python examples/multi30k/score.py runs/multi30k/test.hypotheses.txt data/multi30k/test_2016_flickr.de.gz
"""

import argparse
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

from residual_hf.data.text_files import iter_lines
from residual_hf.evaluation.metrics import tokenized_bleu
from residual_hf.evaluation.translation_metric import TranslationMetric

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("hypotheses", type=Path)
parser.add_argument("references", type=Path, help="raw text")
parser.add_argument("--lang", default="de")
parser.add_argument("--tokenized", action="store_true", help="the hypotheses are tokens of Moses, see prepare.py")
options = parser.parse_args()

hypotheses, references = list(iter_lines(options.hypotheses)), list(iter_lines(options.references))
tokens = hypotheses
if options.tokenized:
    detokenizer = MosesDetokenizer(lang=options.lang)
    hypotheses = [detokenizer.detokenize(line.split()) for line in tokens]
metric = TranslationMetric()
for lowercase in (False, True):
    metrics = metric.compute(
        predictions=hypotheses, references=references, metrics=("bleu", "chrf"), lowercase=lowercase
    )
    for name, score in metrics.items():
        print(f"{name} {score['value']:.2f}  {score['signature']}")

normalizer, tokenizer = MosesPunctNormalizer(lang=options.lang), MosesTokenizer(lang=options.lang)


def tokenize(lines: list[str]) -> list[str]:
    return [
        tokenizer.tokenize(normalizer.normalize(line), aggressive_dash_splits=True, escape=False, return_str=True)
        for line in lines
    ]


tokens = tokens if options.tokenized else tokenize(hypotheses)
print("tokenized (normalized, Moses, aggressive hyphens):", tokenized_bleu(tokens, tokenize(references)))
