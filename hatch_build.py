"""The package's links in its metadata, from the one setting of the site's address."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Links(MetadataHookInterface):
    """Links to the documentation, where it has an address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them."""
        site = runpy.run_path(str(Path(self.root) / "src/theta0/_version.py"))["SITE"]
        metadata["urls"] = {"Documentation": site} if site else {}
