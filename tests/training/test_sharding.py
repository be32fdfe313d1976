import pytest
import torch
from support.trainers import make_model, make_trainer
from torch import distributed
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from residual_hf.training import sharding
from residual_hf.training.sharding import gather_full_model


def test_a_full_copy_searches_as_the_model():
    model = make_model()
    model.generation_config.num_beams = 4
    model.generation_config.max_length_a = 0.0
    assert gather_full_model(model).generation_config == model.generation_config


@pytest.mark.parametrize("writes", [True, False])
def test_one_process_writes_the_full_weights(tmp_path, monkeypatch, writes):
    trainer = make_trainer(tmp_path / "checkpoints", make_model())
    monkeypatch.setattr(sharding, "is_sharded", lambda model: True)
    monkeypatch.setattr(type(trainer.args), "should_save", writes)
    trainer.save_model(str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists() == writes


@pytest.fixture
def mesh(tmp_path):
    """The devices of one process, for FSDP2."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_a_sharded_model_generates(mesh):
    model, source = make_model().eval(), torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]])
    inputs = {"input_ids": source, "attention_mask": source.ne(1), "num_beams": 2, "max_new_tokens": 6}
    expected = model.generate(**inputs)
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with pytest.raises(RuntimeError, match="DTensor"):
        model.generate(**inputs)
    register_fsdp_forward_method(model, "generate")
    assert torch.equal(model.generate(**inputs), expected)
