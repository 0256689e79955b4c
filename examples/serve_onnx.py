"""An exported policy at work with onnxruntime alone, without torch: ``python serve_onnx.py policy.onnx``."""

import sys

import gymnasium as gym
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
env = gym.make(session.get_modelmeta().custom_metadata_map["env_id"])
obs, _ = env.reset(seed=0)
total, ended = 0.0, False
while not ended:
    observations = np.asarray(obs, dtype=np.float32)[np.newaxis]  # a batch of one
    actions = session.run(None, {"observation": observations})[0]
    obs, reward, terminated, truncated, _ = env.step(actions[0])
    total, ended = total + float(reward), terminated or truncated
print(f"return {total:.2f}")
