"""Print the lowest version of each dependency that pyproject.toml claims, as constraints for pip.

They are read from pyproject.toml, so the claim and its check cannot drift apart.
Needs Python 3.11 (tomllib).
"""

from pathlib import Path

import tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
for requirement in project["dependencies"]:
    name, separator, version = requirement.partition(">=")
    if not separator:
        raise SystemExit(f"{requirement!r} in pyproject.toml has no lower bound")
    if name != "torch":  # of which only one version has a CPU build to test on
        print(f"{name}=={version}")
