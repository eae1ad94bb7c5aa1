"""Learning tasks: losses, scores, and the effect of augmentation on targets. A new task is a file here."""

from packager.tasks.classification import Classification
from packager.tasks.detection import Detection
from packager.tasks.embedding import Embedding
from packager.tasks.multilabel import MultiLabel
from packager.tasks.port import LearningTask, mixed_loss
from packager.tasks.regression import Regression
from packager.tasks.segmentation import Segmentation
from packager.tasks.tokens import TokenClassification

__all__ = [
    "Classification",
    "Detection",
    "Embedding",
    "LearningTask",
    "MultiLabel",
    "Regression",
    "Segmentation",
    "TokenClassification",
    "mixed_loss",
]
