"""Print the settings' page: `python tools/settings_page.py > docs/configuration.md`."""

from hatch_lower.config.schema import reference_markdown

print(reference_markdown(), end="")
