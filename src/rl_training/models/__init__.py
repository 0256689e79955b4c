"""Networks: tensors in, tensors out. No optimiser, no target copy, no numpy."""

from rl_training.models.mlp_bc import MLPBCModel
from rl_training.models.mlp_ddpg import MLPDDPGModel
from rl_training.models.mlp_dueling_q_network import MLPDuelingQNetwork
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.mlp_sac import MLPSACModel
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.models.mlp_tqc import MLPTQCModel

__all__ = [
    "MLPBCModel",
    "MLPDDPGModel",
    "MLPDuelingQNetwork",
    "MLPIQLModel",
    "MLPQNetwork",
    "MLPREDQModel",
    "MLPSACModel",
    "MLPTD3Model",
    "MLPTQCModel",
]
