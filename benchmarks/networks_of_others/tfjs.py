"""Weights in TensorFlow.js's format: a model.json that lists tensors, and shards that hold them one after the other."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tenuto.errors import UsageError


def read_tensors(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor of a model.json, by name. A quantised tensor is returned in float32: stored · scale + min."""
    path = folder / "model.json"
    if not path.is_file():
        raise UsageError(f"{folder} holds no model.json, so it is no TensorFlow.js model.")
    tensors = {}
    for group in json.loads(path.read_text(encoding="utf-8"))["weightsManifest"]:
        data = b"".join((folder / Path(name).name).read_bytes() for name in group["paths"])
        at = 0
        for entry in group["weights"]:
            quantised = entry.get("quantization")
            stored = np.dtype(quantised["dtype"] if quantised else entry["dtype"])
            count = math.prod(entry["shape"])
            if at + count * stored.itemsize > len(data):
                raise UsageError(f"The shards in {folder} end before {entry['name']}; is one of them missing or cut?")
            values = np.frombuffer(data, stored, count, at).reshape(entry["shape"])
            if quantised:
                values = values.astype(np.float32) * np.float32(quantised["scale"]) + np.float32(quantised["min"])
            tensors[entry["name"]] = values
            at += count * stored.itemsize
        if at != len(data):
            raise UsageError(f"The shards in {folder} hold {len(data) - at:,} bytes more than model.json describes.")
    return tensors
