import json
import time

import pytest
import torch
from safetensors.torch import save_file
from support import ROOT

from residual_hf.records.markdown import public
from residual_hf.records.secrets import first_secret

RANDOM, HEX = "kT9xPq2LmZ7vRw4NsB8d", "0123456789abcdef" * 2
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
    "dapi" + HEX,
    "machine api.example.org login user password " + "letmein1",
    "-----BEGIN RSA PRIVATE KEY-----",
    "https://someone:" + "letmein1@host.org/a",
    "AccountKey=" + "aBcDeFgHiJ" * 8 + "aBcDef==",
    "Authorization: Bearer " + "aBcDeFgHiJ0123456789",
    "WANDB_API_KEY=" + "0123456789abcdef" * 2,
    "aws_secret_access_key: " + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "wandb_key: " + HEX + "01234567",
    "WANDB_KEY=" + HEX + "01234567",
    "npm_" + RANDOM + "aBcDeFgHiJ012345",
    "https://acct.blob.core.windows.net/c?sv=2022-11-02&sp=r&sig=" + RANDOM + "%2F" + RANDOM + "%3D",
    "password: " + "hunter2",
    "Password: " + "Tr0ub4dor&3",
    "db_password = " + "correct9horse",
    "PGPASSWORD=" + "s3cretpw",
    '"password": "' + "letmein!!" + '"',
    "passwd=" + "qwerty12",
    "pwd: " + "Winter2024!",
    "passphrase: '" + "open5esame" + "'",
    "--password " + "hunter2hunter2",
    "mysql://root:" + "rootpw@db.example.org/x",
    "redis://:" + "p4ssw0rd@cache:6379",
    "api_key: " + RANDOM,
    "<password>" + "S3cretPw99</password>",
    "<apiKey>" + RANDOM + "</apiKey>",
    "COMET_API_KEY=" + "abcdefghijklmnopqrstuvwxy",
    "dckr_pat_" + "aBcDeFgHiJaBcDeFgHiJaBcDe",
    "sq0atp-" + "abcdefghijklmnopqrstuv",
    "pplx-" + HEX + "0123456789abcdef",
    "apikey=" + RANDOM,
    '"apiKey": "' + RANDOM + '"',
    "RANDOM-API-Key: " + RANDOM,
    "client_secret=" + RANDOM,
    "clientSecret: '" + RANDOM + "'",
    "access_token: " + RANDOM,
    "refresh_token=" + RANDOM,
    "token: " + RANDOM,
    "auth_token=" + RANDOM,
    "gsk_" + RANDOM + RANDOM + "aBcDeFgHiJkL",
    "r8_" + RANDOM + "aBcDeFgHiJ01234567",
    "dckr_pat_" + RANDOM + "aBcDeFg",
    "tgp_v1_" + RANDOM + RANDOM + "abc",
    "nvapi-" + RANDOM + RANDOM,
    "shpat_" + HEX,
    "dop_v1_" + HEX * 2,
    "glsa_" + RANDOM + "aBcDeFgHiJkL_12ab34cd",
    "lin_api_" + RANDOM + RANDOM,
    "xai-" + RANDOM + RANDOM,
    "pplx-" + RANDOM + RANDOM,
    "hvs." + RANDOM + "abcd",
    "ASIA" + "IOSFODNN7EXAMPL3",
    "xapp-1-" + "A0123456789-1234567890123-" + HEX * 2,
    "GOCSPX-" + RANDOM + "12345678",
    "Authorization: Basic " + "dXNlcjpwYXNzd29yZDEyMw==",
    "Cookie: session=" + RANDOM,
    "rk_live_" + RANDOM + "aBcD",
    "whsec_" + RANDOM + "aBcDeFgHiJkL",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "-----BEGIN EC PRIVATE KEY-----",
    "sq0atp-" + RANDOM + "ab",
    "key-" + HEX,
    "github_pat_" + "11ABCDEFG0aBcDeFgHiJkL_" + RANDOM + RANDOM,
    "ghs_" + RANDOM + "aBcDeFgHiJ012345",
    "HF_TOKEN=" + "hf_" + RANDOM + "aBcDeFgHiJkLmN",
    "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefgh",
    "sk-or-v1-" + HEX * 2,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "aws_session_token = " + RANDOM + RANDOM,
    "account_key: " + RANDOM + RANDOM + "==",
    "encryption_key=" + RANDOM,
    "signing_secret: " + HEX,
    "secret: " + "Sup3rS3cret",
    "export COMET_API_KEY=" + RANDOM,
    "comet_key=" + RANDOM,
    "neptune_token: " + RANDOM + RANDOM,
    "ssh_pass=" + "hunter22",
    "pass: " + "hunter2!",
    'kaggle: {"username":"a","key":"' + HEX + '"}',
    "rubygems_" + HEX,
    "figd_" + RANDOM + RANDOM,
    "sntrys_" + RANDOM + RANDOM,
    "tskey-auth-" + RANDOM[:12] + "-" + RANDOM,
    "PMAK-" + HEX + "01234567-" + HEX + "01",
    "SK" + HEX,
    "AccountKey=" + RANDOM * 4 + "aBcDef==",
    "EAACEdEose0cBA" + RANDOM + RANDOM,
    "ATATT3xFfGF0" + RANDOM + RANDOM,
    "sgp_" + HEX + "01234567",
    "Passwort: " + "Geheim123",
    "login: admin / password: " + "admin123",
    "user=bob password=" + "bobbob99",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=" + HEX * 2,
    "ASANA_TOKEN=" + "1/1234567890123456:" + HEX,
    "passphrase = " + "correct horse battery 9",
    "The password is " + "Tr0ub4dor&3",
    "git+https://" + RANDOM + "@github.com/x/y",
    "https://discord.com/api/webhooks/" + "123456789012345678/" + RANDOM * 3,
    "sshpass -p " + "hunterrr ssh host",
    "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 2,
    "NRAK-" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ7",
    "sbp_" + HEX + "01234567",
    "pat" + RANDOM[:14] + "." + HEX * 2,
    "LTAI" + RANDOM,
    "AKID" + RANDOM + RANDOM[:12],
    "01234567-89ab-cdef-0123-456789abcdef" + ":fx",
    "curl -u user:" + "pa55word https://example.org",
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


@pytest.mark.parametrize(
    "text", ["eyJ-", "a_secret=", "password:", "secret", "aa_", "-----BEGIN A", "a+", "key=", '"']
)
def test_long_text_is_searched_in_linear_time(text, tmp_path):
    (tmp_path / "README.md").write_text(text * (10_000 // len(text)))
    started = time.process_time()
    first_secret(tmp_path / "README.md")
    public(text * (4_000 // len(text)))
    assert time.process_time() - started < 4


def test_documentation_has_no_secrets():
    for path in (*ROOT.glob("*.md"), *ROOT.glob("model_cards/*.md"), ROOT / "docs" / "practitioner.md"):
        assert first_secret(path) is None


def test_what_is_no_secret_is_not_refused(tmp_path):
    text = (
        "On 12/05/2020 he said: the password: letmein\nhub_token: '***'\ntoken=os.environ['HF_TOKEN']\n"
        "password = getpass()\n"
        "export HF_TOKEN=<your token>\nssh://git@github.com/a/b\nhttps://huggingface.co/user/hf_transformers\n"
        f"sha256 {'0123456789abcdef' * 4}\nuser/sk-en-transformer1234567\nAPPROPRIATENESS\npad_token: '<pad>'\n"
        "The password is 12 letters long.\npassword: <yours>\nkey: value\ntokens: 4096\nmax_tokens=20000000000000000\n"
        "eos_token_id: 2\n--password PASSWORD\nThe passphrase is required. The password is unknown to h2o.\npatient.2020\nssh://git@gitlab.com/abc\nhttp://localhost:5000/a@b\npipeline_T5ForConditionalGeneration\n"
    )
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "a.json").write_text(json.dumps({"pad_token": "<pad>", "hub_token": "***", "text": text.splitlines()}))
    assert first_secret(tmp_path / "README.md") is None and first_secret(tmp_path / "a.json") is None
