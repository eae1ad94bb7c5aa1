"""ONNX models as trainable modules (docs/adr/0090-two-doors.md).

`reading` checks the file, `network` runs its nodes with torch functions from `operators`, `weights` names what becomes
the weights of torch.nn layers, `importing` exports that network and has it rebuilt as any exported program is.
"""
