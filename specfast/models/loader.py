"""From a name to a model and its tokenizer: folders, hub ids, GGUF files, the package's own."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specfast.models import demo
from specfast.models.committed import FOLDERS
from specfast.models.config import DTYPES, ModelConfig
from specfast.models.decoder import Model
from specfast.models.gguf import GgufFile
from specfast.models.gguf_model import GgufCheckpoint, gguf_config
from specfast.models.gguf_tokenizer import gguf_tokenizer
from specfast.models.safetensors import FolderCheckpoint
from specfast.models.torch_checkpoint import TorchCheckpoint
from specfast.models.weights import Checkpoint, read_weights
from specfast.tokenizer import Tokenizer
from specfast.validation import read_object

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.jinja", "model*.safetensors"]
_HEAD_FILES = ["*.json", "*.safetensors", "*.bin", "*.pt"]
_MEDUSA_FILE = "medusa_lm_head.safetensors"
_PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt")

logger = logging.getLogger(__name__)


def load(model: str, dtype: str = "auto") -> tuple[Model, Tokenizer]:
    """model: a Hugging Face folder or hub id, a .gguf file, "demo", or a name of `committed`.

    dtype: "float32", "bfloat16", or "auto", which is what the checkpoint stores (float16 becomes
    float32, which holds it exactly; quantised GGUF becomes bfloat16). ValueError says what is wrong
    with the name, the config, or a tensor.
    """
    path = resolve(model)
    if path.is_file():
        return _load_gguf(path, dtype)
    loaded = _load_folder(path, dtype)
    if size := loaded.config.draft_vocab_size:
        raise ValueError(
            f"{model} is a draft model: it knows {size} of its target's tokens. Give it as "
            "speculative_config's model, beside the target."
        )
    return loaded, Tokenizer.from_folder(path)


def load_draft(model: str, dtype: str = "auto") -> Model:
    """A model without its tokenizer, named as for `load`: a draft uses its target's.

    weights.d2t, where there is one, says which of the target's tokens its logits stand for.
    """
    path = resolve(model)
    return _load_gguf(path, dtype)[0] if path.is_file() else _load_folder(path, dtype)


@dataclass(frozen=True)
class HeadFolder:
    """A drafting head on disk: config.json beside one file of tensors, or shards."""

    path: Path
    checkpoint: Checkpoint


def head_folder(name: str) -> HeadFolder:
    """A folder, hub id, or a name of `committed` -> where a head lies and what it holds."""
    path = resolve(name, _HEAD_FILES)
    if not path.is_dir():
        raise ValueError(f"{name} is a file; a drafting head is a folder with a config.json.")
    if (path / _MEDUSA_FILE).exists():
        return HeadFolder(path, FolderCheckpoint(path, _MEDUSA_FILE))
    pickled = [path / file for file in _PICKLED if (path / file).exists()]
    if pickled and not list(path.glob("*.safetensors")):
        return HeadFolder(path, TorchCheckpoint(pickled[0]))
    return HeadFolder(path, FolderCheckpoint(path))


def kind_of(name: str) -> str:
    """The method that drafts with the model or head called `name`: its tensors say."""
    if resolve(name, _HEAD_FILES).is_file():
        return "draft_model"
    tensors = head_folder(name).checkpoint.shapes
    if "fc.weight" in tensors:
        return "eagle"
    if "0.0.linear.weight" in tensors:
        return "medusa"
    is_decoder = "model.layers.0.input_layernorm.weight" in tensors
    has_blocks = any(n.startswith("model.mtp_layers.") for n in tensors)
    return "mtp" if has_blocks and not is_decoder else "draft_model"


def resolve(model: str, files: list[str] = _HUB_FILES) -> Path:
    """The folder or .gguf file that a name stands for, fetched if it has to be."""
    if model == "demo":
        return demo.find()
    if model in FOLDERS:
        return FOLDERS[model]
    path = Path(model).expanduser()
    if path.is_dir():
        return _inside(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{path} is a file, but no .gguf; give a folder or a .gguf file.")
        return path
    if _HUB_ID.fullmatch(model) and path.suffix != ".gguf" and not model.startswith("."):
        return _from_hub(model, files)
    raise ValueError(
        f"No model {model!r}: it is no folder, no .gguf file, no hub id (owner/name), and none "
        f"of {', '.join(map(repr, ('demo', *FOLDERS)))}."
    )


def _inside(folder: Path) -> Path:
    """A folder without config.json may hold one .gguf file."""
    files = list(folder.glob("*.gguf"))
    if (folder / "config.json").exists():
        return folder
    if len(files) == 1:
        return files[0]
    raise ValueError(
        f"{folder} has no config.json and {len(files)} .gguf files; give a Hugging Face model "
        "folder, or one .gguf file."
    )


def _from_hub(name: str, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except GatedRepoError as error:
        raise ValueError(
            f"{name} is gated: accept its licence on its page, then log in with `hf auth login`."
        ) from error
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"{name} is neither a folder here, nor in the Hugging Face cache, nor can the hub be "
            "reached. Check the name and the network, or fetch it elsewhere (`hf download "
            f"{name}`) and give the folder."
        ) from error
    except HfHubHTTPError as error:
        raise ValueError(f"The hub does not give {name}: {error}") from error


def _load_folder(folder: Path, dtype: str) -> Model:
    config = ModelConfig.from_hf(read_object(folder / "config.json"))
    return _build(config, FolderCheckpoint(folder), dtype)


def _load_gguf(path: Path, dtype: str) -> tuple[Model, Tokenizer]:
    file = GgufFile(path)
    config = gguf_config(file)
    checkpoint = GgufCheckpoint(file, config)
    if dtype == "auto" and checkpoint.is_quantised:
        logger.warning("%s: quantised weights are computed with in bfloat16.", path.name)
    return _build(config, checkpoint, dtype), gguf_tokenizer(file.metadata)


def _build(config: ModelConfig, checkpoint: Checkpoint, dtype: str) -> Model:
    resolved = checkpoint.dtype if dtype == "auto" else DTYPES[dtype]
    if resolved == torch.float16:
        resolved = torch.float32
    config = replace(config, dtype=resolved)
    return Model(config, read_weights(config, checkpoint))
