"""Probes under DistributedDataParallel and FSDP2, in two processes: their figures, and what they leave behind."""

import multiprocessing
import os
import socket

import adam
import paper_probes
import stability
import torch
from support.probed_models import model_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from residual_hf.probes import gradients


def make_model():
    return model_of("resi_dual", width=16, vocab_size=40, dropout=0.1)


def batch_of(rank):
    source, target = torch.randint(4, 40, (2, 3, 5), generator=torch.Generator().manual_seed(rank))
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


def state_of(model):
    """What a probe must not change."""
    return {
        "weights": [p.detach().clone() for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "random": [torch.get_rng_state()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
    }


def equal(before, after):
    return {
        name: all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) and b is not None else a == b
            for a, b in zip(before[name], after[name], strict=True)
        )
        for name in before
    }


def measure(rank, port, results):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    model = DistributedDataParallel(make_model())
    batch = batch_of(rank)
    model(**batch).loss.backward()  # a training under way: gradients, dropout on
    before = state_of(model)
    norms = [row.norm for row in gradients.gradient_norms(model, batch) if row.location == "weights"]
    changes = [row.change for row in paper_probes.representation_change(model, batch)]
    stability.output_change(model, batch, "update")
    untouched = equal(before, state_of(model))
    sharded = fully_shard(make_model(), mesh=init_device_mesh("cpu", (2,)))
    norms_of_shards = [row.norm for row in gradients.gradient_norms(sharded, batch) if row.location == "weights"]
    shares = [row.below_1e_3 for row in adam.gradient_scales(sharded, batch)]
    results.put((rank, norms, changes, untouched, norms_of_shards, shares))
    results.close()
    results.join_thread()
    torch.distributed.barrier()
    os._exit(0)  # the exit of a fork would run that of the parent


def test_probes_of_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=measure, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(30)
    (_, norms, *_), (_, other_norms, *_) = found
    assert norms == other_norms  # of the weights: those of all processes
    model = make_model()
    both = {name: torch.cat([batch_of(0)[name], batch_of(1)[name]]) for name in batch_of(0)}
    alone = [row.norm for row in gradients.gradient_norms(model, both) if row.location == "weights"]
    torch.testing.assert_close(norms, alone, rtol=1e-4, atol=1e-6)
    shares = [row.below_1e_3 for row in adam.gradient_scales(model, both)]
    for rank, _, changes, untouched, norms_of_shards, shares_of_shards in found:
        torch.testing.assert_close(norms_of_shards, alone, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(shares_of_shards, shares, rtol=0, atol=1e-2)
        assert changes == [row.change for row in paper_probes.representation_change(model, batch_of(rank))]
        assert untouched == dict.fromkeys(untouched, True)
