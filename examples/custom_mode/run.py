"""Trains `highway.py` for a minute, saves it, and loads it in a process that knows neither this folder nor the mode.

python examples/custom_mode/run.py runs/highway
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import highway  # noqa: F401  registers the mode

from residual_hf.base.files import RECORD, check_output_folder
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.synthetic import generate_corpus
from residual_hf.runs.quickstart import quickstart_recipe
from residual_hf.runs.reading import run_folder
from residual_hf.runs.run import train_on

ELSEWHERE = """
import sys
from transformers import AutoModelForSeq2SeqLM, pipeline
folder, sentence = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
print("ln_mode:", model.config.ln_mode)
print(pipeline("translation", model=folder, trust_remote_code=True)(sentence))
"""

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("output_dir", type=Path)
parser.add_argument("--updates", type=int, default=200)
parser.add_argument("--pairs", type=int, default=20000, help="sentence pairs to train on")
parser.add_argument("--overwrite", action="store_true", help="replace an earlier run in the output folder")
options = parser.parse_args()

folder = options.output_dir
check_output_folder(folder, overwrite=options.overwrite, holds=[RECORD])
recipe = quickstart_recipe(folder)
updates = {"max_updates": options.updates, "eval_every": options.updates, "warmup_updates": options.updates // 10}
training = replace(recipe.training, **updates)
recipe = replace(recipe, model=recipe.model | {"ln_mode": "highway", "ln_mode_options": None}, training=training)
corpora = generate_corpus({"train": options.pairs, "valid": 100, "test": 100})
texts = {
    name: [ParallelCorpus(*map(list, zip(*pairs, strict=True)), name, "en", "de")] for name, pairs in corpora.items()
}
with run_folder(folder, overwrite=options.overwrite):
    metrics = train_on(recipe, texts, folder)
print(f"BLEU after {options.updates} updates: {metrics['test']['bleu']['value']:.1f}")

code = ["-c", ELSEWHERE, str((folder / "model").resolve()), texts["test"][0].sources[0]]
subprocess.run([sys.executable, *code], check=True, cwd=folder)
