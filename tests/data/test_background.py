import os
import signal
import threading
import time
from concurrent.futures import CancelledError

import pytest

from residual_hf.base.interrupts import signals_interrupt
from residual_hf.data.background import BackgroundCall, interruptible


def test_the_result_of_a_call_and_its_error_reach_the_caller():
    assert BackgroundCall(lambda check: 6 * 7).result() == 42

    def fail(check):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        BackgroundCall(fail).result()


def test_a_cancelled_call_ends_at_its_next_check():
    started = threading.Event()

    def endless(check):
        started.set()
        while True:
            check()
            time.sleep(0.001)

    call = BackgroundCall(endless)
    started.wait()
    call.cancel()
    with pytest.raises(CancelledError):
        call.result()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_a_call_within_a_library(number):
    """As a minute of tokenizer training is, in which Python runs no handler."""
    library, checked = threading.Event(), []

    def call(check):
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        library.wait()
        checked.append(True)
        check()

    with signals_interrupt(), pytest.raises(KeyboardInterrupt):
        interruptible(call)
    assert not checked
    library.set()
