"""The HTTP API of `residual-hf serve` on a Ray cluster, with as many replicas as the load needs.

serve run examples.scale.serve_api:app models=runs/en_de/model,runs/de_en/model max_replicas=8
"""

from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve import Application


class Arguments(BaseModel):
    """Models separated by commas, in folders that all machines see; replicas, and the CPUs and GPUs of each."""

    models: str
    min_replicas: int = 1
    max_replicas: int = 2
    cpus: float = 1
    gpus: float = 0
    char_limit: int = 5000
    timeout: float = 60


def make_app(arguments: Arguments) -> FastAPI:
    """The application of one replica."""
    from residual_hf.generation.translator import Translator
    from residual_hf.serving.app import create_app
    from residual_hf.serving.languages import Languages
    from residual_hf.serving.server_settings import ServerSettings

    translators = {model: Translator.from_pretrained(model, max_tokens=4000) for model in arguments.models.split(",")}
    settings = ServerSettings(char_limit=arguments.char_limit, timeout=arguments.timeout)
    return create_app(Languages(translators), settings)


def app(arguments: Arguments) -> Application:
    """What `serve run` deploys. A replica has 32 requests at a time, which it translates in common batches."""
    # for replicas with another working directory
    models = [str(Path(name).resolve()) if Path(name).exists() else name for name in arguments.models.split(",")]
    arguments = arguments.model_copy(update={"models": ",".join(models)})

    def of_replica() -> FastAPI:
        return make_app(arguments)

    @serve.deployment(
        max_ongoing_requests=64,
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": 32,
        },
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        graceful_shutdown_timeout_s=arguments.timeout,
    )
    @serve.ingress(of_replica)
    class Api:
        pass

    return Api.bind()
