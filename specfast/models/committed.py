"""The models that the package itself carries, by name."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
FOLDERS = {
    "demo-draft": DATA / "demo-draft",
    "demo-eagle": DATA / "demo-eagle",
    "demo-medusa": DATA / "demo-medusa",
    "tiny": DATA / "tiny" / "target",
    "tiny-draft-s": DATA / "tiny" / "draft-s",
    "tiny-draft-m": DATA / "tiny" / "draft-m",
    "tiny-eagle": DATA / "tiny" / "eagle",
    "tiny-medusa": DATA / "tiny" / "medusa",
}

# What drafts for each target, by method; None: nothing that would have to be named.
DRAFTS_OF: dict[str, dict[str, str | None]] = {
    "demo": {
        "draft_model": "demo-draft",
        "eagle": "demo-eagle",
        "hybrid": "demo-draft",
        "medusa": "demo-medusa",
    },
    "tiny": {
        "draft_model": "tiny-draft-m",
        "eagle": "tiny-eagle",
        "hybrid": "tiny-draft-m",
        "medusa": "tiny-medusa",
        "mtp": None,
    },
}
