"""A phone's NPU while packaging: its maker's compiler and emulator, on this machine."""
