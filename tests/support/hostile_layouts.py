"""Layouts of texts that take too much, for the processes of a server, which import them from here."""

import errno
import os
import re
import signal


class Slow:
    """Searches for hours, with Python's lock held."""

    def __init__(self, given, fits):
        re.fullmatch(r"(a|a)*b", "a" * 60)


class Large:
    def __init__(self, given, fits):
        self.sentences = [(str(len(bytearray(2**33))), False)]


class Dead:
    def __init__(self, given, fits):
        os.kill(os.getpid(), signal.SIGKILL)


class Full:
    def __init__(self, given, fits):
        raise OSError(errno.ENOSPC, "No space left on device")


class Broken:
    def __init__(self, given, fits):
        self.sentences = [("zwei", False)]

    def joined(self, found):
        raise ZeroDivisionError
