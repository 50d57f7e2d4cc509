"""Why a build did something again: what changed since the last one, in words."""
