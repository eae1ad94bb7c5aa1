"""Early exits: by confidence, and by the mean accuracy of what is there when inference is interrupted."""
