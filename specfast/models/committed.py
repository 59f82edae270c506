"""The models that the package itself carries, by name."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
FOLDERS = {
    "demo-draft": DATA / "demo-draft",
    "tiny": DATA / "tiny" / "target",
    "tiny-draft-s": DATA / "tiny" / "draft-s",
    "tiny-draft-m": DATA / "tiny" / "draft-m",
}

# The draft that a target has at hand.
DRAFT_OF = {"demo": "demo-draft", "tiny": "tiny-draft-m"}
