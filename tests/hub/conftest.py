import json
import shutil

import pytest
import yaml
from support.finished_run import GOOD, REFERENCES, corpus, score, write_json, write_lines
from support.tiny_translator import save_tiny


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("made") / "model", source_lang="de", target_lang="en")


@pytest.fixture
def make_run(tmp_path, model_folder):
    """Makes a folder as `residual-hf train` leaves it, with given translations."""

    def make(name="run", hypotheses=GOOD, splits=("train", "valid", "test")):
        run = tmp_path / name
        shutil.copytree(model_folder, run / "model")
        recipe = {
            "data": {split: {"source": f"{split}.de", "target": f"{split}.en"} for split in splits},
            "training": {"lr": 0.004, "seed": 7, "metric": "nll", "average": 0},
            "decoding": {"num_beams": 5, "length_penalty": 1.0},
        }
        metrics = {"updates": 400, "minutes": 12.0}
        for split in splits[1:]:
            write_lines(run / f"{split}.hypotheses.txt", hypotheses)
            write_lines(run / f"{split}.references.txt", REFERENCES)
            write_lines(run / f"{split}.sources.txt", [f"Satz {n}" for n in range(len(REFERENCES))])
            metrics[split] = {"sentences": len(REFERENCES), "seconds": 1.5}
            metrics[split] |= {"loss": 2.5, "nll": 2.125, "ppl": 8.373} | score(hypotheses, REFERENCES)
        curve = [{"step": step, "nll": 9.0 - step / 100, "loss": 9.0} for step in (1, 100, 200, 300, 400)]
        curve += [{"step": step, "eval_nll": 8.0 - step / 100, "eval_bleu": step / 20} for step in (200, 400)]
        record = {
            "command": "residual-hf train recipe.yaml --set training.seed=7",
            "seconds": 720.0,
            "commit": "0123456789" * 4,
            "versions": {"residual_hf": "0.1", "torch": "2.11"},
            "seed": 7,
            "device": "NVIDIA H200",
            "processes": 2,
            "parameters": 123456,
            "tokens_per_second": 98765.4,
            "data": {split: [corpus(split)] for split in splits},
        }
        write_json(run / "metrics.json", metrics)
        write_json(run / "run.json", record)
        write_json(run / "cleaning.json", {"pairs": 30, "kept": 27, "dropped": {"duplicate": 3}, "examples": {}})
        write_lines(run / "recipe.yaml", [yaml.safe_dump(recipe)])
        write_lines(run / "metrics.jsonl", map(json.dumps, curve))
        return run

    return make
