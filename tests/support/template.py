"""A process that has loaded PyTorch and becomes, in a copy of itself, one Python program after another."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading

LOADED = (
    *("torch._dynamo", "torch.distributed.tensor", "torchao.prototype.safetensors.safetensors_support"),
    *("pandas", "pyarrow.dataset", "pyarrow.parquet", "PIL.Image", "jinja2", "requests", "httpx2", "tokenizers"),
)
"""Most of the time of `import transformers` and half of that of `import datasets`; none of them reads the variables
that programs are started with."""


def become(arguments, cwd, environment, output, errors):
    for path, stream in ((os.devnull, 0), (output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    program, *sys.argv = arguments
    if program == "-m":
        sys.path.insert(0, "")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.path.insert(0, "")
        code, sys.argv[0] = sys.argv[0], program
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path.insert(0, os.path.dirname(program))
        sys.argv = arguments
        runpy.run_path(program, run_name="__main__")


def leave():
    """End a process, without freeing what its libraries have loaded, which takes a third of a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def exit_code(children):
    """Of the first process that fails, which ends the others, else 0."""
    code = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            for other in children:
                os.kill(other, signal.SIGKILL)
    return code


def serve():
    """Answer each line of JSON, the arguments of `become` with one environment a process, with the exit code."""
    gc.disable()
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request, children = json.loads(line), set()
        environments = request.pop("environments")
        for environment in environments:
            child = os.fork()
            if child == 0:
                gc.set_threshold(10_000, 10, 10)
                gc.enable()
                become(**request, environment=environment)
                return leave() if len(environments) == 1 else None
            children.add(child)
        print(exit_code(children), flush=True)


if __name__ == "__main__":
    serve()
