from node import DiLoCo as DiLoCo
from node import NodeConfig as NodeConfig
from node import Swarm as Swarm

__all__ = ["DiLoCo", "NodeConfig", "Swarm"]
