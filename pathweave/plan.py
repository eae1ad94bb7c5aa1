"""Terms of which plans are made: paths, exits, splits, deciders, servers' models, expected costs."""

from __future__ import annotations

from device_sdk.offload.remote_model import LogarithmicPool as LogarithmicPool
from device_sdk.supernet.cost import PlanCost as PlanCost
from device_sdk.supernet.plan import Abstain as Abstain
from device_sdk.supernet.plan import AnswerLocally as AnswerLocally
from device_sdk.supernet.plan import Ask as Ask
from device_sdk.supernet.plan import Cascade as Cascade
from device_sdk.supernet.plan import Edge as Edge
from device_sdk.supernet.plan import Entropy as Entropy
from device_sdk.supernet.plan import ExitChoice as ExitChoice
from device_sdk.supernet.plan import Logistic as Logistic
from device_sdk.supernet.plan import Margin as Margin
from device_sdk.supernet.plan import MaxConfidence as MaxConfidence
from device_sdk.supernet.plan import Plan as Plan
from device_sdk.supernet.plan import Prior as Prior
from device_sdk.supernet.plan import RemoteRef as RemoteRef
from device_sdk.supernet.plan import Router as Router
from device_sdk.supernet.plan import Split as Split
from device_sdk.supernet.plan import Subnet as Subnet
from device_sdk.supernet.supernet import Supernet as Supernet
