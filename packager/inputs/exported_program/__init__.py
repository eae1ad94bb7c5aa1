"""Models saved by ``torch.export.save`` (docs/adr/0090-two-doors.md).

`archive` reads the file without unpickling anything but tensors, `layers` rebuilds torch.nn layers around its weights,
`batch_axis` lets a program for a fixed batch take any.
"""
