from .judging.bounds import Bound as Bound
from .judging.bounds import lower_bound as lower_bound
from .judging.certificates import (
    Certificate as Certificate,
)
from .judging.certificates import (
    certify as certify,
)
from .judging.certificates import (
    check as check,
)
from .judging.certificates import (
    read_certificate as read_certificate,
)
from .judging.certificates import (
    write_certificate as write_certificate,
)
from .judging.compare import (
    Summary as Summary,
)
from .judging.compare import (
    Trial as Trial,
)
from .judging.compare import (
    compare as compare,
)
from .judging.compare import (
    suite_tasks as suite_tasks,
)
from .judging.compare import (
    summarise as summarise,
)
from .learning.agent import Agent as Agent
from .learning.dreamshard import DreamShard as DreamShard
from .learning.dreamshard import Schedules as Schedules
from .learning.dreamshard_policy import DreamShardPolicy as DreamShardPolicy
from .learning.policy_network import PlacementPolicy as PlacementPolicy
from .learning.pretrained import pretrained_agent as pretrained_agent
from .learning.rnn import (
    RnnPlanner as RnnPlanner,
)
from .learning.rnn import (
    RnnPolicy as RnnPolicy,
)
from .learning.rnn import (
    train_rnn as train_rnn,
)
from .learning.sb3_policies import (
    ActionFeatures as ActionFeatures,
)
from .learning.sb3_policies import (
    MaskablePlacementPolicy as MaskablePlacementPolicy,
)
from .learning.sb3_policies import (
    PlacementActorCriticPolicy as PlacementActorCriticPolicy,
)
from .learning.sb3_policies import (
    transfer as transfer,
)
from .learning.sb3_vec_env import TwinVecEnv as TwinVecEnv
from .learning.sb3_vec_env import make_vec as make_vec
from .learning.training import (
    TrainingOptions as TrainingOptions,
)
from .learning.training import (
    TrainingStatus as TrainingStatus,
)
from .learning.training import (
    train_agent as train_agent,
)
from .planners.column_split import BeamSearchPlanner as BeamSearchPlanner
from .planners.column_split import ShardedPlan as ShardedPlan
from .planners.heuristics import (
    GreedyPlanner as GreedyPlanner,
)
from .planners.heuristics import (
    LargestFirstPlanner as LargestFirstPlanner,
)
from .planners.heuristics import (
    RandomPlanner as RandomPlanner,
)
from .planners.heuristics import (
    heuristic_planners as heuristic_planners,
)
from .planners.local_search import LocalSearchPlanner as LocalSearchPlanner
from .planners.milp import MilpPlanner as MilpPlanner
from .planners.planner import (
    InfeasibleTaskError as InfeasibleTaskError,
)
from .planners.planner import (
    NoPlacementFoundError as NoPlacementFoundError,
)
from .planners.planner import (
    Planner as Planner,
)
from .planners.portfolio import PortfolioPlanner as PortfolioPlanner
