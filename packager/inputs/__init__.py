"""What a packaging run starts from: model, weights, data, recipe."""
