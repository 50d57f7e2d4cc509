"""The backends that come with hatch-lower, each in a compile half and a run half."""
