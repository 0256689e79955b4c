"""A policy exported to ONNX that acts, with onnxruntime and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rl_training.runtime.observations import as_batch
from rl_training.types import CheckpointError, ConfigError


class OnnxPolicy:
    """What ``rl-training export`` wrote: observations in, environment actions out; ``metadata`` is what it says of itself."""

    def __init__(self, path: str | Path) -> None:
        runtime = _onnxruntime()
        if not Path(path).is_file():
            raise CheckpointError(f"{path} does not exist")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one observation is too little to share out
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library has an exception class for every way in which a file can be wrong
            reason = str(error).splitlines()[0][:200]
            raise CheckpointError(f"{path} is not an ONNX file that can be run: {reason}") from None
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        shape = inputs[0].shape if len(inputs) == len(outputs) == 1 and inputs[0].type == "tensor(float)" else []
        if len(shape) != 2 or not isinstance(shape[1], int):
            taken = ", ".join(f"{entry.name} {entry.type} {entry.shape}" for entry in inputs)
            raise CheckpointError(f"{path} is no exported policy: it takes {taken or 'nothing'}, not a batch of observations")
        self.obs_shape = (shape[1],)
        self._input = inputs[0].name
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def predict(self, obs: npt.ArrayLike) -> Any:
        """One action for one observation, a batch of actions for a batch, as :meth:`Policy.predict` gives them."""
        batch, single = as_batch(obs, self.obs_shape)
        (actions,) = self._session.run(None, {self._input: batch})
        if not single:
            return actions
        return int(actions[0]) if actions.ndim == 1 else actions[0]

    def __repr__(self) -> str:
        task = json.dumps({name: self.metadata[name] for name in ("algo", "env_id") if name in self.metadata})
        return f"OnnxPolicy({task}, obs_shape={self.obs_shape})"


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise ConfigError('running an ONNX file needs onnxruntime: pip install "rl-training[export]"') from None
    onnxruntime.set_default_logger_severity(3)  # errors only: it warns of graphics cards that are not there
    return onnxruntime
