"""Several processes behind one port, under the supervisor of uvicorn."""

import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from residual_hf.base.errors import InputError

from .http_limits import uvicorn_config
from .server_settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger("uvicorn.error")

ANSWERS_WITHIN = 60  # seconds in which a worker must answer the supervisor


class Supervisor(Multiprocess):
    """Starts a worker for each that ends. The metrics keep what that has counted, but not what it had in progress."""

    def keep_subprocess_alive(self) -> None:
        before = {process.pid for process in self.processes}
        for process in self.processes:
            process.child_conn.close()  # of the worker alone, so that its end interrupts a health check
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)


def serve_in_workers(make_app: "Callable[[Path], FastAPI]", settings: ServerSettings) -> None:
    """Serve in `settings.workers` processes until SIGTERM or SIGINT; SIGHUP replaces one after the other.

    They accept connections from one socket, so that those of a worker that ends wait for the others.
    `make_app` is pickled, and called in each worker with a folder that they share.
    """
    with (
        TemporaryDirectory(prefix="residual_hf_") as shared,
        TemporaryDirectory(prefix="residual_hf_metrics_") as counts,
    ):
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # in which prometheus_client adds up processes
        app = partial(worker_app, pickle.dumps(partial(make_app, Path(shared))), settings.workers)
        options = {"factory": True, "workers": settings.workers, "timeout_worker_healthcheck": ANSWERS_WITHIN}
        config = uvicorn_config(app, settings, **options)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        with socket.create_server((settings.host, settings.port), family=family, backlog=config.backlog) as listener:
            logger.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", *listener.getsockname()[:2])
            supervisor = Supervisor(config, [listener])
            supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise InputError("a worker could not start")


def worker_app(make_app: bytes, workers: int) -> "FastAPI":
    """The application of a worker, which ends with its supervisor and has its share of the CPUs.

    `make_app` is unpickled here, because a worker that imports PyTorch earlier does not answer the supervisor.
    """
    import torch

    threading.Thread(target=end_with_supervisor, daemon=True).start()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    logging.disable(logging.WARNING)  # of libraries about themselves, as in other verbs
    make = pickle.loads(make_app)
    logging.disable(logging.NOTSET)
    try:
        return make()
    except InputError as error:
        print(f"residual-hf serve: {error}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)


def end_with_supervisor() -> None:
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
