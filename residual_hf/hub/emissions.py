# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What a training run emitted, where that can be said."""

from __future__ import annotations

from dataclasses import dataclass

from residual_hf.errors import InputError

from .finished_run import FinishedRun

BOARD_WATTS = {  # of the vendors' data sheets, by the name that torch gives the device
    "NVIDIA H200": 700,
    "NVIDIA H100 80GB HBM3": 700,
    "NVIDIA H100 PCIe": 350,
    "NVIDIA A100-SXM4-80GB": 400,
    "NVIDIA A100-SXM4-40GB": 400,
    "NVIDIA A100 80GB PCIe": 300,
    "NVIDIA A100-PCIE-40GB": 250,
    "Tesla V100-SXM2-16GB": 300,
    "Tesla V100-SXM2-32GB": 300,
    "NVIDIA L4": 72,
    "Tesla T4": 70,
    "NVIDIA GeForce RTX 3090": 350,
    "NVIDIA GeForce RTX 4090": 450,
}


@dataclass(frozen=True)
class Emissions:
    """Grams of CO2 equivalent and the sentence on how they were estimated."""

    grams: float
    assumption: str
    hardware: str | None


def estimate(run: FinishedRun, intensity: float | None, watts: float | None) -> Emissions | None:
    """Hours times watts of the devices times `intensity` (g CO2 equivalent per kWh); None if none is stated.

    `watts` is what one device draws; None is the board power of its data sheet. Raises `InputError` for a figure below
    0, watts without intensity, and a device or duration that is not known.
    """
    for name, value in (("carbon_intensity", intensity), ("device_power", watts)):
        if value is not None and not value >= 0:
            raise InputError(f"{name}: {value} given, must be at least 0")
    if intensity is None:
        if watts is not None:
            raise InputError(f"device_power: {watts} given without carbon_intensity; the estimate needs both")
        return None
    device = run.record.get("device")
    origin = "as stated" if watts is not None else "the board power of its data sheet"
    watts = BOARD_WATTS.get(device) if watts is None else watts
    if watts is None:
        raise InputError(f"device_power: missing; the power of device {device!r} is not known to residual_hf")
    if run.hours is None:
        raise InputError(f"run folder: {run.folder} does not say how long the run took, which the estimate needs")
    devices = run.record.get("processes") or 1
    kilowatt_hours = run.hours * devices * watts / 1000
    hardware = f"{devices} x {device}" if device else None
    return Emissions(
        kilowatt_hours * intensity,
        f"{run.hours:.3g} h x {hardware or devices} x {watts:g} W ({origin}) = {kilowatt_hours:.3g} kWh, at "
        f"{intensity:g} g per kWh as stated. An estimate: the devices are taken to draw that power all the time, and "
        "the rest of the machine is not counted.",
        hardware,
    )
