"""Tasks other than classes of images: adapted on the device against what a user does by hand."""
