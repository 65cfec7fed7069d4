"""What accidents and edits make of files, and everything a posterior holds, to be compared."""

import copy
import dataclasses
import hashlib
import json

import numpy as np

from posterity.core import records
from posterity.storage.codec import encode


def contents(posterior):
    """Every value of a posterior, to be compared."""
    arrays = {}
    model = records.replace(posterior.model, fixed=None)
    calibration = posterior.calibration
    parts = (model, posterior.family, posterior.method, posterior.trace, posterior.facts, posterior.inputs)
    rest = (dataclasses.asdict(posterior.receipt), posterior.metadata, None if calibration is None else calibration[:2])
    text = json.dumps([encode(part, arrays, str(i)) for i, part in enumerate((*parts, *rest))], sort_keys=True)
    return text, {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}


def damaged(rng, content):
    """The bytes of a file after one accident."""
    first, last = np.sort(rng.integers(len(content) + 1, size=2))
    place, other = rng.integers(len(content), size=2)
    made = bytearray(content)
    kind = rng.integers(9)
    if kind == 0:
        made[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        made[place] = int(rng.integers(256))
    elif kind == 2:
        made[place], made[other] = made[other], made[place]
    elif kind == 3:
        made.insert(place, int(rng.choice([32, 10, int(rng.integers(256))])))
    elif kind == 4:
        made[place:place] = rng.bytes(int(rng.integers(1, 50)))
    elif kind == 5:
        del made[place]
    elif kind == 6:
        del made[first:last]
    elif kind == 7:
        made[first:last] = bytes(last - first)  # zeros, as some file systems leave after a crash
    else:
        del made[place:]
    return bytes(made)


def spots(value):
    """(container, key) of everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(value, key) for key, _ in items] + [spot for _, item in items for spot in spots(item)]


def edited(rng, content, signed):
    """A manifest after one edit of its JSON: a number, a text, a name, a type, a thing missing; signed again or not."""
    whole = json.loads(content)
    body = json.loads(whole["body"])
    places = spots(body)
    container, key = places[rng.integers(len(places))]
    value, kind = container[key], rng.integers(4)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = [None, -1, 1e300, "?", [], {}, True][rng.integers(7)]
    elif kind == 2 and isinstance(container, dict):
        container[f"{key}?"] = container.pop(key)
    elif isinstance(value, int | float):
        container[key] = value + 1
    elif isinstance(value, str):
        container[key] = value[:-1] + "x"
    else:
        other, name = places[rng.integers(len(places))]
        container[key] = copy.deepcopy(other[name])
    text = json.dumps(body, sort_keys=True)
    checksum = hashlib.sha256(text.encode()).hexdigest() if signed else whole["checksum"]
    return json.dumps({"checksum": checksum, "body": text}).encode()
