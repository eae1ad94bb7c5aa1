"""The SDK's commands."""
