import gc
import importlib.util
import logging
import os
import signal
import sys

os.environ["TQDM_DISABLE"] = "1"  # before tqdm is imported; as the command line does where no terminal shows bars
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: it tries a host that does not answer for long
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: the tensors are tiny, and tests run side by side

import pytest

gc.disable()  # while tests are collected: what the libraries load stays

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
if (
    hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
):  # under nohup; the commands, which leave it ignored, must see it
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def quick_cards():
    """Runs and cards draw no learning curve and resample a test set 20 times, not 1000, which both take long.

    Only tests with `learning_curves` and `resamples` look.
    """
    from residual_hf.evaluation.metrics import paired_bootstrap
    from residual_hf.records import learning_curve

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning_curve, "find_spec", lambda name: None)
        patch.setattr(paired_bootstrap, "__defaults__", (*paired_bootstrap.__defaults__[:-1], 20))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_search_for_lomo():
    """accelerate looks for the package of this optimizer at every backward pass and every step."""
    import accelerate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate.accelerator, "is_lomo_available", lambda: False)
        patch.setattr(accelerate.optimizer, "is_lomo_available", lambda: False)
        yield


class ListedLoggers:
    """The manager of all loggers that lists only those that do not propagate, without those of PyTorch."""

    def __init__(self, manager):
        self.manager, self.known, self.listed = manager, 0, {}

    @property
    def loggerDict(self):
        loggers = self.manager.loggerDict
        if len(loggers) != self.known:
            own = {name: logger for name, logger in loggers.items() if not name.startswith("torch")}
            self.listed = {name: logger for name, logger in own.items() if not getattr(logger, "propagate", True)}
            self.known = len(loggers)
        return self.listed

    @property
    def disable(self):
        return self.manager.disable

    @disable.setter
    def disable(self, level):  # by `logging.disable`
        self.manager.disable = level

    def __getattr__(self, name):
        return getattr(self.manager, name)


@pytest.fixture(scope="session", autouse=True)
def quick_capture_of_logs():
    """pytest looks through all loggers, of which the libraries have thousands, six times a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root, "manager", ListedLoggers(logging.root.manager))
        yield


@pytest.fixture
def learning_curves():
    """Runs and cards draw their learning curve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("residual_hf.records.learning_curve.find_spec", importlib.util.find_spec)
        yield


@pytest.fixture
def resamples(monkeypatch):
    """Cards have confidence intervals of as many resamples as those of users."""
    from residual_hf.evaluation.metrics import paired_bootstrap

    monkeypatch.setattr(paired_bootstrap, "__defaults__", (*paired_bootstrap.__defaults__[:-1], 1000))


@pytest.fixture(scope="module")
def tokenizer():
    from support.tiny_translator import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    """The translator of `tokenizer`."""
    from support.tiny_translator import tiny_model

    return tiny_model(tokenizer)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A saved tiny translator; tests only read it."""
    from support.tiny_translator import save_tiny

    return save_tiny(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def user_mode(tmp_path, monkeypatch):
    """A function that writes and imports a module with modes of a user; the registry forgets them afterwards."""
    from residual_hf.model import connections

    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    monkeypatch.syspath_prepend(tmp_path)

    def write(module, text):
        (tmp_path / f"{module}.py").write_text(text)
        return importlib.import_module(module)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def refused(capsys):
    """A function that checks that `residual-hf` refuses arguments with a message on standard error and code 2."""
    from residual_hf.cli import main

    def check(message, *arguments):
        assert main([*map(str, arguments)]) == 2
        assert message in capsys.readouterr().err

    return check


@pytest.fixture(scope="module")
def small_generated_corpus():
    """The corpus of short trainings, of 300 pairs and 400 tokens."""
    import generated as training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "PAIRS", {"train": 300, "valid": 20, "test": 1})
        patch.setattr(training, "VOCABULARY", 400)
        training.generated_corpora.cache_clear()
        yield
        training.generated_corpora.cache_clear()


def pytest_collection_modifyitems(items):
    """What takes longest is first: at the end, the other process would wait. Slow tests have half an hour each."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(1800))
    items.sort(key=lambda item: item.path.name != "test_distributed.py")


def pytest_collection_finish():
    import torch  # not above, where the process imports it too that only hands out the tests to others

    torch.set_num_threads(1)  # the tensors are tiny, and tests run side by side
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
    freeze()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path or len(sys.modules) > freeze.loaded + 20:
        freeze()


def freeze():
    """Collections of garbage, of which every training makes some, leave out what the libraries have loaded."""
    gc.collect()
    gc.freeze()
    freeze.loaded = len(sys.modules)
