# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from residual_hf.records.markdown import public
from residual_hf.records.secrets import first_secret

FORMS = [  # put together, so that scanners of repositories do not stop at this file
    "hf_" + "aBcDeFgHiJ" * 3 + "kLmN",
    "api_org_" + "aBcDeFgHiJ" * 3 + "kLmN",
    "ghp_" + "0a1B2c3D4e" * 3 + "5F6g7H",
    "gho_" + "0a1B2c3D4e" * 3 + "5F6g7H",
    "github_pat_" + "11ABCDEFG0" + "aBcDeFgHiJ0123456789",
    "glpat-" + "aBcDeFgHiJ0123456789",
    "xoxb-" + "123456789012-1234567890123-aBcDeFgHiJaBcDeFgHiJaBcD",
    "https://hooks.slack.com/services/" + "T00000000/B00000000/aBcDeFgHiJaBcDeFgHiJaBcD",
    "sk-" + "aBcDeFgHiJ0123456789" * 2,
    "sk-proj-" + "aBcDeFgHiJ0123456789" * 2,
    "sk-ant-" + "api03-aBcDeFgHiJ0123456789",
    "AKIA" + "IOSFODNN7EXAMPL3",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "ya29." + "a0AfH6SMBx1234567890abcdef",
    "sk_live_" + "aBcDeFgHiJ0123456789aBcD",
    "SG." + "aBcDeFgHiJ0123456789aB" + "." + "aBcDeFgHiJ0123456789aBcDeFgHiJ0123456789aBc",
    "//registry.npmjs.org/:_authToken=" + "npm_aBcDeFgHiJ0123456789aBcDeFgHiJ012345",
    "pypi-" + "AgEIcHlwaS5vcmc" + "aBcDeFgHiJ" * 8,
    "AC" + "0123456789abcdef" * 2,
    "0123456789abcdef" * 2 + "-us12",
    "123456789:" + "aBcDeFgHiJ0123456789aBcDeFgHiJ01234",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "-----BEGIN RSA PRIVATE KEY-----",
    "https://someone:" + "letmein1@host.org/a",
    "AccountKey=" + "aBcDeFgHiJ" * 8 + "aBcDef==",
    "Authorization: Bearer " + "aBcDeFgHiJ0123456789",
    "WANDB_API_KEY=" + "0123456789abcdef" * 2,
    "aws_secret_access_key: " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
]


@pytest.mark.parametrize("secret", FORMS)
def test_usual_forms_are_found_in_text_and_masked_in_cards(secret, tmp_path):
    (tmp_path / "README.md").write_text(f"# A model\n\nuse {secret} to load it\n")
    place, kind = first_secret(tmp_path / "README.md")
    assert place == "line 3" and kind
    assert secret not in public(f"use {secret} now")


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"model": {"vocab": {"a": 0, FORMS[0]: 1}}}, "a name in model.vocab"),
        ({"task_specific_params": {"a": [{"note": f"see {FORMS[2]}"}]}}, "task_specific_params.a.0.note"),
        ({"hub_token": "abc"}, "hub_token"),
    ],
)
def test_secrets_are_found_in_the_fields_of_json_files_and_weights(values, place, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert first_secret(tmp_path / "a.json")[0] == place
    metadata = {"format": "pt", "settings": json.dumps(values | {"more": FORMS[5]})}
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata=metadata)
    assert first_secret(tmp_path / "a.safetensors")[0] == "metadata.settings"


def test_what_is_no_secret_is_not_refused(tmp_path):
    text = (
        "On 12/05/2020 he said: the password: letmein\nhub_token: '***'\ntoken=os.environ['HF_TOKEN']\n"
        "export HF_TOKEN=<your token>\nssh://git@github.com/a/b\nhttps://huggingface.co/user/hf_transformers\n"
        f"sha256 {'0123456789abcdef' * 4}\nuser/sk-en-transformer1234567\nAPPROPRIATENESS\npad_token: '<pad>'\n"
    )
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "a.json").write_text(json.dumps({"pad_token": "<pad>", "hub_token": "***", "text": text.splitlines()}))
    assert first_secret(tmp_path / "README.md") is None and first_secret(tmp_path / "a.json") is None
