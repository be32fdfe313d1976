import signal
from types import SimpleNamespace

import pytest

from residual_hf.base.interrupts import SIGNALS
from residual_hf.training import callbacks
from residual_hf.training.callbacks import EvaluationSummary, InterruptCallback, RecordCallback


@pytest.fixture
def clock(monkeypatch):
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: time.now))
    return time


def run_state(step, history=()):
    return SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=1000, log_history=list(history))


def test_time_left_counts_the_updates_of_this_start(tmp_path, clock, caplog):
    record = RecordCallback(tmp_path / "metrics.jsonl")
    with caplog.at_level("INFO", logger="residual_hf"):
        record.on_train_begin(None, run_state(800), None)
        clock.now = 50.0
        record.on_log(None, run_state(850), None, {"loss": 2.0})
        record.on_log(None, run_state(850), None, {"eval_loss": 2.0})
    assert "training: update 801 to 1000" in caplog.text
    assert "update 850 of 1000, 2 min left  loss 2" in caplog.text
    assert "update 850  eval_loss 2" in caplog.text


def test_evaluation_names_the_best_so_far_and_draws_the_curve(learning_curves, tmp_path, clock, caplog):
    pytest.importorskip("matplotlib", reason="the extra [card] is not installed")
    summary = EvaluationSummary(tmp_path / "learning_curve.png", "bleu")
    history = [{"step": 10, "eval_nll": 3.0, "eval_bleu": 20.0}, {"step": 20, "eval_nll": 2.0, "eval_bleu": 18.0}]
    clock.now = 60.0
    summary.on_step_end(None, run_state(20), None)
    clock.now = 63.0
    with caplog.at_level("INFO", logger="residual_hf"):
        summary.on_evaluate(None, run_state(20, history), None, {"eval_bleu": 18.0})
        summary.on_evaluate(None, run_state(20, history), None, {"test_bleu": 1.0})
    assert [record.message for record in caplog.records] == ["bleu 18, best 20 at update 10"]
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_evaluations_that_take_long_are_reported_once(tmp_path, clock, caplog):
    summary = EvaluationSummary(tmp_path / "learning_curve.png", "nll")
    for updates_until, evaluated_at in ((60, 90), (150, 180)):
        clock.now = updates_until
        summary.on_step_end(None, run_state(20), None)
        clock.now = evaluated_at
        summary.on_evaluate(None, run_state(20, [{"step": 20, "eval_nll": 2.0}]), None, {"eval_nll": 2.0})
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        "evaluation took 30 s, 33% of the time since the last one; to reduce it, raise training.eval_every "
        "or lower eval_sentences or eval_beams"
    ]


@pytest.mark.parametrize(("scores", "warned"), [([0.0, 0.01, 0.02], 1), ([0.0, 0.0, 0.3], 0)])
def test_bleu_that_stays_zero_is_warned_about_once(scores, warned, caplog, tmp_path):
    state = run_state(3000)
    for metrics in [*({"eval_bleu": score} for score in scores[:3]), {"valid_nll": 1.0}, {"eval_bleu": 0.0}]:
        state.log_history.append(metrics)
        summary = EvaluationSummary(tmp_path / "curve.png", "nll")  # of a run that may have been resumed
        summary.on_evaluate(None, state, None, metrics=metrics)
    assert len(caplog.messages) == warned
    assert not warned or "validation BLEU is still 0 at update 3000" in caplog.text


@pytest.fixture
def signals():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield SIGNALS
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_signal_stops_after_a_checkpoint(signals):
    for number in signals:
        interrupt, control = InterruptCallback(), SimpleNamespace(should_save=False, should_training_stop=False)
        interrupt.on_train_begin(None, None, None)
        signal.raise_signal(number)
        interrupt.on_step_end(SimpleNamespace(world_size=1), run_state(1), control)
        assert interrupt.interrupted and control.should_save and control.should_training_stop
        interrupt.restore()


def test_a_second_signal_stops_immediately_unless_it_is_the_first_passed_on(signals, monkeypatch):
    seen = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    interrupt = InterruptCallback()
    interrupt.on_train_begin(None, None, None)
    for _ in range(2):  # to the process, and from `torchrun`
        signal.raise_signal(signal.SIGTERM)
    assert interrupt.interrupted and not seen
    interrupt.restore()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    alone = InterruptCallback()
    alone.on_train_begin(None, None, None)
    signal.raise_signal(signal.SIGTERM)
    assert alone.interrupted and not seen
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_processes_stop_at_the_same_update(monkeypatch):
    monkeypatch.setattr(callbacks, "gather_object", lambda own: [*own, (True, False)])  # a signal of another process
    interrupt, stopped = InterruptCallback(), []
    interrupt.started = 0.0
    for step in (InterruptCallback.AGREE_EVERY - 1, InterruptCallback.AGREE_EVERY):
        control = SimpleNamespace(should_save=False, should_training_stop=False)
        interrupt.on_step_end(SimpleNamespace(world_size=2), run_state(step), control)
        stopped.append(control.should_training_stop)
    assert stopped == [False, True]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_ignored_stays_ignored(signals, number):
    signal.signal(number, signal.SIG_IGN)  # SIGHUP by nohup, SIGINT of a job that a script starts with &
    interrupt = InterruptCallback()
    interrupt.on_train_begin(None, None, None)
    signal.raise_signal(number)
    assert not interrupt.interrupted
    interrupt.restore()
