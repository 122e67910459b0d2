"""The long description, which pyproject.toml cannot make: README.md without links that need the repository."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
INNER_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n?")
INNER_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")

text = INNER_LINK.sub(r"\1", INNER_IMAGE.sub("", (ROOT / "README.md").read_text(encoding="utf-8")))
setup(long_description=text, long_description_content_type="text/markdown")
