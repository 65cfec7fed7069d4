"""Before a stage runs: on which devices, and each phase of its plan with the program that runs it."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from posterity.core import pytrees, records
from posterity.core.devices import device_mesh, place
from posterity.core.types import Batch, Phase
from posterity.data.arrays import Dataset
from posterity.data.batches import batch_width
from posterity.inference.engine.feed import fitted, template
from posterity.inference.engine.job import Job, ScheduledPhase, Streamed
from posterity.inference.engine.program import Extra, Layout, Shared, layout_of, pad_chains, place_rows
from posterity.inference.engine.start import Start
from posterity.inference.methods.method import Execution, Method
from posterity.models.model import Model, num_weights
from posterity.models.units import in_network_units
from posterity.networks.built_in import BuiltIn
from posterity.networks.convolutions import convolves

LONGEST_WAIT = 50  # steps between two looks at validation rows, where an epoch has fewer


def schedule(job: Job, start: Start) -> tuple[list[ScheduledPhase], Start, Execution]:
    """The phases of a job, its start on the devices that they run on, and how their programs are compiled."""
    method, num_rows = job.method, job.num_rows
    model, data, validation = _in_network_units(job)
    phases = method.plan(num_rows)
    convolving = _convolves(job)
    mesh = _mesh(job, phases, convolving)
    start = on_devices(start, mesh)
    free, fixed = pytrees.take_rows((start.free, start.fixed), 0)
    execution = method.execution(model.bind(fixed), free, data)
    # Convolutions of several sets of weights side by side are grouped ones, for which XLA has no fast code on a CPU.
    in_turn = execution.in_turn or (convolving and jax.default_backend() == "cpu")
    keeps = any(phase.keep for phase in phases)
    total_steps = sum(phase.num_steps for phase in phases)
    rows: dict[bool, Batch] = {}  # split over devices or whole on each, as phases need them
    scheduled, offset = [], 0
    for number, phase in enumerate(phases):
        layout = layout_of(mesh, phase, num_rows, start.free, keeps, in_turn=in_turn, float64=execution.float64)
        layout = layout._replace(augment=job.augment if method.augments else None)
        extra = place(_extra(method, validation, layout, total_steps), mesh)
        if job.source is not None:
            streamed = Streamed(job.source, job.model.likelihood)
            phase, layout = fitted(phase, layout, job.source, len(start.key))
            shared = Shared(method, model, template(streamed, layout), np.asarray(num_rows), extra)
            scheduled.append(ScheduledPhase(number, phase, offset, layout, shared, streamed))
            offset += phase.num_steps
            continue
        picks = layout.batches > 1
        if picks not in rows:
            rows[picks] = place_rows(layout, data)
        shared = Shared(method, model, rows[picks], np.asarray(num_rows), extra)
        scheduled.append(ScheduledPhase(number, phase, offset, layout, shared))
        offset += phase.num_steps
    return scheduled, start, execution


def on_devices(start: Start, mesh: Mesh) -> Start:
    """As many chains as fill the devices."""
    return place(pad_chains(start, mesh.shape["chain"]), mesh, "chain")


def _mesh(job: Job, phases: tuple[Phase, ...], convolving: bool) -> Mesh:
    """Devices for chains and rows: what splitting rows is worth grows with the rows of a step and the weights.

    On a CPU it depends on the network.
    """
    num_rows = job.num_rows
    widest = max((batch_width(num_rows, phase.batch_size) for phase in phases), default=num_rows)
    work = widest * num_weights(job.model, pytrees.take_rows(job.rows.x, slice(0, 1)))
    return device_mesh(job.num_chains, work, job.mesh, splits_rows=widest > 1 and convolving)


def _convolves(job: Job) -> bool:
    """Whether the network convolves: built-in ones say so, others are traced."""
    network, row = job.model.network, pytrees.take_rows(job.rows.x, slice(0, 1))
    if isinstance(network, BuiltIn) and network.splits_rows:
        return True
    return convolves(job.model.plain_outputs, jax.eval_shape(job.model.init, jax.random.key(0), row), row)


def _in_network_units(job: Job) -> tuple[Model, Dataset, Dataset | None]:
    """The model and the rows that chains see: targets in units of their own are of about unit size there."""
    given = [job.rows] if job.validation is None else [job.rows, job.validation]
    likelihood, targets = in_network_units(job.model.likelihood, *(rows.y for rows in given))
    data, *validation = (rows._replace(y=y) for rows, y in zip(given, targets, strict=True))
    return records.replace(job.model, likelihood=likelihood), data, validation[0] if validation else None


def _extra(method: Method, validation: Dataset | None, layout: Layout, num_steps: int) -> Extra:
    """How often to look at the validation rows: once an epoch, or every hundredth of the run where that is more."""
    if validation is None:
        return Extra(None)
    # An epoch may be a single step, and ten steps of Adam without a better loss are nothing to stop for.
    every = max(layout.batches, min(num_steps // 100, LONGEST_WAIT))
    return Extra(validation.batch(), every, method.patience)
