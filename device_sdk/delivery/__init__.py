"""How bundles come to the device and its log goes back. Nothing that was fetched counts before it is verified."""

from device_sdk.delivery.download import Delivered, fetch_bundle
from device_sdk.delivery.log_upload import UploadResult, upload_log
from device_sdk.delivery.store import BundleStore, StoredBundle

__all__ = ["BundleStore", "Delivered", "StoredBundle", "UploadResult", "fetch_bundle", "upload_log"]
