"""Building a wheel again from its sources, in a place and an environment in which all that may vary does."""
