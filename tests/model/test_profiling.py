import pytest
import torch
from support.models import SOURCE, TARGET, make
from support.reference import Fixture

from residual_hf.conversion import change_ln_mode
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.profiling import wants_profile


def batch_of(fixture):
    source = fixture.source
    return {"input_ids": source, "attention_mask": source.ne(1), "decoder_input_ids": fixture.decoder_input}


def test_profile_equals_the_official_one():
    fixture = Fixture("admin_profiled")
    model = fixture.model(dropout=0.0)
    for name, parameter in model.named_parameters():
        if name.endswith("omega"):
            parameter.data.fill_(5.0)  # whatever it was
    profile = model.profile_admin(batch_of(fixture))
    official = [value for _, value in fixture.settings["profile"]]
    assert profile == pytest.approx(official, rel=1e-6)
    assert not model.training
    outputs = model(**batch_of(fixture))
    target = fixture.decoder_input.ne(1)
    torch.testing.assert_close(outputs.logits[target], fixture.output("logits")[target], rtol=1e-5, atol=1e-5)


def test_a_model_is_built_again_from_its_config(tmp_path):
    fixture = Fixture("admin_profiled")
    model = fixture.model(dropout=0.0)
    profile = model.profile_admin(batch_of(fixture))
    model.config.save_pretrained(tmp_path)
    fresh = ResidualForConditionalGeneration(ResidualConfig.from_pretrained(tmp_path))
    omegas = [p[0].item() for name, p in fresh.named_parameters() if name.endswith("omega")]
    assert sorted(omegas) == pytest.approx(sorted(profile))


def test_layer_drop_drops_no_layer_of_the_profile():
    batch = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "labels": TARGET}
    plain, dropping = (make("admin", encoder_layerdrop=rate, decoder_layerdrop=rate) for rate in (0.0, 0.9))
    assert dropping.profile_admin(batch) == plain.profile_admin(batch)
    assert dropping.get_encoder().layerdrop == 0.9


def test_other_modes_have_no_profile():
    fixture = Fixture("post_ln")
    with pytest.raises(ValueError, match="requires ln_mode 'admin'"):
        fixture.model().profile_admin(batch_of(fixture))


def trained(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss.backward()
    optimizer.step()
    return model


def saved_and_loaded(model, folder, **overrides):
    model.save_pretrained(folder)
    return ResidualForConditionalGeneration.from_pretrained(folder, **overrides)


@pytest.mark.parametrize("norm_type", ["layer_norm", "rms_norm", "scale_norm", "ada_norm"])
def test_only_untrained_models_are_profiled(norm_type, tmp_path):
    model = make("admin", norm_type=norm_type)
    assert wants_profile(model)
    assert wants_profile(saved_and_loaded(model, tmp_path / "untrained"))
    assert wants_profile(make("post_ln", decoder_ln_mode="admin", norm_type=norm_type))
    assert not wants_profile(make("post_ln", norm_type=norm_type))
    assert not wants_profile(trained(model))
    assert not wants_profile(saved_and_loaded(model, tmp_path / "trained"))


def test_a_profiled_model_is_not_profiled_again(tmp_path):
    model = make("admin")
    profile = model.profile_admin({"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "labels": TARGET})
    assert not wants_profile(model)
    loaded = saved_and_loaded(model, tmp_path)
    assert not wants_profile(loaded) and loaded.config.admin_profile == profile
    assert not wants_profile(ResidualForConditionalGeneration(loaded.config))


def test_models_of_one_config_are_profiled_each(tmp_path):
    config = make("admin").config
    first, second = (ResidualForConditionalGeneration(config) for _ in range(2))
    first.profile_admin({"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "labels": TARGET})
    assert wants_profile(second) and not wants_profile(first)


def test_a_trained_model_that_becomes_admin_is_not_profiled(tmp_path):
    """Its omega of 1 is exact: a profile would change its logits."""
    model = trained(make("post_ln"))
    changed = change_ln_mode(model, "admin")
    assert not changed.config.admin_profile and not wants_profile(changed)
    assert not wants_profile(saved_and_loaded(changed, tmp_path / "changed"))
    assert not wants_profile(saved_and_loaded(model, tmp_path / "post_ln", ln_mode="admin"))
    assert not wants_profile(Fixture("admin").model())  # converted from fairseq
