"""Bundle download and log upload. Everything fetched is verified before use."""

from device_sdk.delivery.download import Delivered, fetch_bundle
from device_sdk.delivery.log_upload import UploadResult, upload_log
from device_sdk.delivery.store import BundleStore, StoredBundle

__all__ = ["BundleStore", "Delivered", "StoredBundle", "UploadResult", "fetch_bundle", "upload_log"]
