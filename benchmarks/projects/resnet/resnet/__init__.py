"""An image classifier of ResNet-18's size with random weights."""
