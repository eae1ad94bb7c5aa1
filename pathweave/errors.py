"""Errors of the device SDK; all are ``PathweaveError``."""

from __future__ import annotations

from device_sdk.errors import BlobError as BlobError
from device_sdk.errors import BudgetError as BudgetError
from device_sdk.errors import BundleError as BundleError
from device_sdk.errors import ClockError as ClockError
from device_sdk.errors import ClosedError as ClosedError
from device_sdk.errors import CompositionError as CompositionError
from device_sdk.errors import CorruptImageError as CorruptImageError
from device_sdk.errors import DataError as DataError
from device_sdk.errors import DeadlineError as DeadlineError
from device_sdk.errors import ExpiredError as ExpiredError
from device_sdk.errors import ForkedError as ForkedError
from device_sdk.errors import InfeasibleBudgetError as InfeasibleBudgetError
from device_sdk.errors import InfeasibleDeadlineError as InfeasibleDeadlineError
from device_sdk.errors import InputError as InputError
from device_sdk.errors import ManifestError as ManifestError
from device_sdk.errors import MeasurementError as MeasurementError
from device_sdk.errors import MissingExtraError as MissingExtraError
from device_sdk.errors import NoAnswerYetError as NoAnswerYetError
from device_sdk.errors import PathweaveError as PathweaveError
from device_sdk.errors import ProtocolError as ProtocolError
from device_sdk.errors import RefusedError as RefusedError
from device_sdk.errors import RollbackError as RollbackError
from device_sdk.errors import RuntimeFailedError as RuntimeFailedError
from device_sdk.errors import SelfTestError as SelfTestError
from device_sdk.errors import SignatureError as SignatureError
from device_sdk.errors import StorageError as StorageError
from device_sdk.errors import TransferError as TransferError
from device_sdk.errors import UnsupportedFormatError as UnsupportedFormatError
from device_sdk.errors import UsageError as UsageError
