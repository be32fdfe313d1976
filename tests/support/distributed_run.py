"""Short training runs that test_distributed.py starts in one process or several; prints their figures as JSON.

python distributed_run.py FOLDER '{"ddp": {"settings": {"update_freq": 2}}}'

Then the command trains the recipe in the folder, twice: its folder is refused the second time.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from safetensors.torch import save_file
from transformers import TrainerCallback

from residual_hf import DiagnosticsCallback
from residual_hf.cli import main
from residual_hf.generation.scoring import translate_corpus
from residual_hf.training.launch import shutdown_process_group
from residual_hf.training.trainer import ResidualTrainer
from residual_hf.training.training_settings import TrainingSettings
from support.trainers import Words, make_corpus, make_model


class Settings(TrainingSettings):
    """Settings whose Transformers arguments can be amended, as `accelerate` config files do."""

    arguments: dict = {}

    def to_arguments(self, output_dir, **further):
        made = super().to_arguments(output_dir, **further)
        return replace(made, **self.arguments) if self.arguments else made


class KeepGradient(TrainerCallback):
    """The gradient of the first update, before it is made."""

    first: dict = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if not KeepGradient.first:
            named = getattr(model, "module", model).named_parameters()
            KeepGradient.first = {name: p.grad.clone() for name, p in named if p.grad is not None}


class OwnNumbers(TrainerCallback):
    """Random numbers that differ between processes: each drops other layers, as dropout on a CPU can lead to."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.manual_seed(10 * state.global_step + args.process_index)


class HalvedSecondPass(torch.nn.Dropout):
    """In the place of a dropout: the passes of R-Drop differ alike in every process."""

    def forward(self, x):
        return torch.cat([x[: len(x) // 2], x[len(x) // 2 :] / 2]) if self.training else x


def train(folder: Path, settings=None, arguments=None, model=None) -> dict:
    """Figures of a run with these `TrainingSettings`, `Seq2SeqTrainingArguments` and fields of the config."""
    KeepGradient.first, Settings.arguments = {}, arguments or {}
    base = {"max_tokens": 60, "max_updates": 6, "warmup_updates": 2, "lr": 1e-2, "eval_every": 6, "log_every": 1}
    chosen = Settings(**{**base, "eps": 1e-3, "eval_bleu": False, **(settings or {})})
    corpora = (make_corpus(), make_corpus(21, seed=1))
    made = make_model(**(model or {}))
    if chosen.r_drop:
        dropouts = [name for name, module in made.named_modules() if isinstance(module, torch.nn.Dropout) and module.p]
        for name in dropouts:
            made.set_submodule(name, HalvedSecondPass(0.1))
    trainer = ResidualTrainer(made, chosen, folder, *corpora)
    trainer.add_callback(KeepGradient())
    if made.config.encoder_layerdrop:
        trainer.add_callback(OwnNumbers())
    if trainer.accelerator.distributed_type != DistributedType.DEEPSPEED:
        trainer.add_callback(DiagnosticsCallback(folder, every=2))
    trainer.train()
    if trainer.is_world_process_zero() and KeepGradient.first:
        save_file(KeepGradient.first, folder / "gradient.safetensors")
    history = [record for record in trainer.state.log_history if "loss" in record]
    figures = {
        "processes": trainer.accelerator.num_processes,
        "loss": [record["loss"] for record in history],
        "nll": [record["nll"] for record in history],
        "grad_norm": [record["grad_norm"] for record in history],
        "admin_profile": trainer.model.config.admin_profile,
        "eval_nll": trainer.evaluate()["eval_nll"],
    }
    with trainer.inference() as translator:
        figures["translations"] = translate_corpus(translator, Words(), corpora[1], [""] * len(corpora[1]))
    return figures


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    figures = {name: train(folder / name, **run) for name, run in runs.items()}
    if PartialState().is_main_process:
        print("FIGURES", json.dumps(figures))
    assert main(["train", str(folder / "recipe.yaml")]) == 0
    assert main(["train", str(folder / "recipe.yaml")]) == 2  # says on stderr why not
    shutdown_process_group()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in threads), threads
