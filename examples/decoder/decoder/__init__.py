"""A small Llama that generates tokens with a key/value cache, lowered by `hatch build` into the wheel."""
