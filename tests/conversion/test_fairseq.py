import torch
from support.reference import Fixture

from residual_hf.conversion import convert_fairseq_state_dict


def fuse(state_dict):
    """Separate projections to fused ones, as older forks store them."""
    fused = {}
    for name, tensor in state_dict.items():
        if ".k_proj." in name:
            parts = [state_dict[name.replace(".k_proj.", f".{x}_proj.")] for x in "qkv"]
            fused[name.replace(".k_proj.", ".in_proj_")] = torch.cat(parts)
        elif ".q_proj." not in name and ".v_proj." not in name:
            fused[name] = tensor
    return fused


def test_fused_projections_give_the_same_weights():
    fixture = Fixture("resi_dual")
    separate = {k: v for k, v in fixture.group("weight/").items() if "in_proj" not in k}
    fused = fuse(separate)
    assert any("in_proj_weight" in name for name in fused)
    expected = convert_fairseq_state_dict(separate, fixture.config())
    converted = convert_fairseq_state_dict(fused, fixture.config())
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(converted[name], tensor), name


def test_tied_tables_may_be_stored_once():
    fixture = Fixture("post_ln")
    weights = fixture.group("weight/")
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        weights.pop(name, None)
    converted = convert_fairseq_state_dict(weights, fixture.config())
    table = converted["model.encoder.embed_tokens.weight"]
    assert converted["lm_head.weight"] is table and converted["model.decoder.embed_tokens.weight"] is table
