import huggingface_hub.utils
import pytest
from huggingface_hub import constants

from residual_hf.base.errors import InputError
from residual_hf.base.names import check_repository
from residual_hf.checkpoint import load_checkpoint
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.pair_reader import check_files
from residual_hf.data.pipeline import given_tokenizer


class Network:
    """A session of `huggingface_hub` that counts requests."""

    def __init__(self, works: bool):
        self.works, self.requests = works, 0

    def head(self, url, timeout):
        self.requests += 1
        if not self.works:
            raise TimeoutError("timed out")


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    network = Network(works=False)
    monkeypatch.setattr(huggingface_hub.utils, "get_session", lambda: network)
    return network


def test_a_mistyped_path_is_not_tried_for_half_a_minute(network, tmp_path):
    (tmp_path / "runs" / "model").mkdir(parents=True)
    for read, message in (
        (lambda: load_checkpoint("runs/modle"), r"^model runs/modle: .*; did you mean runs/model\?; the Hub cann"),
        (lambda: given_tokenizer("a/b", "bpe"), "^tokenizer.path: a/b cannot be loaded: no .*be reached: timed"),
        (lambda: check_files([CorpusSpec(dataset="data/my-corpus")]), "^corpus.dataset: data/my-corpus: no .*Hub"),
    ):
        with pytest.raises(InputError, match=message):
            read()
    assert network.requests == 3
    for name in ("runs/../runs/modle", "./modle", "with space"):
        with pytest.raises(InputError, match=r"no such folder[^T]*$"):
            check_repository(name, "model")
    assert network.requests == 3


def test_names_that_the_libraries_look_up(network, tmp_path):
    (tmp_path / "cache" / "models--somebody--en-de").mkdir(parents=True)
    check_repository("somebody/en-de", "model")
    assert not network.requests
    network.works = True
    check_repository("somebody/de-en", "model")
    assert network.requests == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [("pairs.parquet", "read it with `file`"), ("notes.doc", "must be a folder or a name on the H")],
)
def test_a_file_is_not_a_dataset(network, tmp_path, name, advice):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"corpus.dataset: {name} is a file; {advice}"):
        check_files([CorpusSpec(dataset=name)])


def test_a_missing_file_is_named_with_one_that_is_similar(network, tmp_path):
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match=r"^no such file: trian.en; did you mean train.en\?, no/such.de; seen from "):
        check_files([CorpusSpec(source="trian.en", target="no/such.de")])
