from .judging.bounds import Bound as Bound, lower_bound as lower_bound
from .judging.certificates import (
    Certificate as Certificate,
    certify as certify,
    check as check,
    read_certificate as read_certificate,
    write_certificate as write_certificate,
)
from .judging.compare import (
    Summary as Summary,
    Trial as Trial,
    compare as compare,
    suite_tasks as suite_tasks,
    summarise as summarise,
)
from .learning.agent import Agent as Agent
from .learning.dreamshard import DreamShard as DreamShard, Schedules as Schedules
from .learning.dreamshard_policy import DreamShardPolicy as DreamShardPolicy
from .learning.policy_network import PlacementPolicy as PlacementPolicy
from .learning.pretrained import pretrained_agent as pretrained_agent
from .learning.rnn import RnnPlanner as RnnPlanner, RnnPolicy as RnnPolicy, train_rnn as train_rnn
from .learning.sb3_policies import (
    ActionFeatures as ActionFeatures,
    MaskablePlacementPolicy as MaskablePlacementPolicy,
    PlacementActorCriticPolicy as PlacementActorCriticPolicy,
    transfer as transfer,
)
from .learning.sb3_vec_env import TwinVecEnv as TwinVecEnv, make_vec as make_vec
from .learning.training import (
    TrainingOptions as TrainingOptions,
    TrainingStatus as TrainingStatus,
    train_agent as train_agent,
)
from .planners.column_split import BeamSearchPlanner as BeamSearchPlanner, ShardedPlan as ShardedPlan
from .planners.heuristics import (
    GreedyPlanner as GreedyPlanner,
    LargestFirstPlanner as LargestFirstPlanner,
    RandomPlanner as RandomPlanner,
    heuristic_planners as heuristic_planners,
)
from .planners.local_search import LocalSearchPlanner as LocalSearchPlanner
from .planners.milp import MilpPlanner as MilpPlanner
from .planners.planner import (
    InfeasibleTaskError as InfeasibleTaskError,
    NoPlacementFoundError as NoPlacementFoundError,
    Planner as Planner,
)
from .planners.portfolio import PortfolioPlanner as PortfolioPlanner
