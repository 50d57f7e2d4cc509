"""The choice of a recipe by measurement, for `hatch-lower tune`: candidates, their race, and the written choice."""
