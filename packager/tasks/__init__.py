"""What a model learns to do: how its answers are judged, and what augmentation does to what they are compared with.

A new task is a file here.
"""

from packager.tasks.classification import Classification
from packager.tasks.detection import Detection
from packager.tasks.port import LearningTask, mixed_loss
from packager.tasks.segmentation import Segmentation

__all__ = ["Classification", "Detection", "LearningTask", "Segmentation", "mixed_loss"]
