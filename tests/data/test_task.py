"""Tasks: the fields and metrics that they name exist, and a model without a recipe has the right one."""

from dataclasses import fields

import pytest

from residual_hf.data.task import LANGUAGE_MODELING, SPEECH_RECOGNITION, SUMMARIZATION, TASKS, TRANSLATION, task_of
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.runs.recipe import Recipe
from residual_hf.training.training_settings import LOSSES, METRICS


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_what_a_task_names_exists(task):
    assert {name.partition(".")[0] for name in task.fixed} <= {*(field.name for field in fields(Recipe)), "corpus"}
    assert {*TRANSLATION.words} - {*task.words} <= {"example"}


def test_every_metric_of_training_belongs_to_a_task():
    assert {*LOSSES}.union(*(task.scores for task in TASKS.values())) == {*METRICS}


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"source_lang": "en", "target_lang": "de"}, TRANSLATION),
        ({}, TRANSLATION),
        ({"source_lang": "en", "target_lang": "en"}, SUMMARIZATION),
        ({"is_decoder_only": True}, LANGUAGE_MODELING),
        ({"conv_channels": 8}, SPEECH_RECOGNITION),
    ],
)
def test_the_task_of_a_model(config, task):
    assert task_of(ResidualConfig(**config)) is task
