from node.state.config import NodeConfig as NodeConfig
from node.swarm import Swarm as Swarm
from training.loop.diloco import DiLoCo as DiLoCo

__all__ = ["DiLoCo", "NodeConfig", "Swarm"]
