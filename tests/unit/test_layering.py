"""Imports go down only, in Python and in C++: read from the sources, whatever happens to load."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A module may import from its own line and those above it; a package's name covers its modules.
LAYERS = [
    line.split()
    for line in """
    validation machine batch_schedule synthetic sampling_params speculative_config config
    extension ops reference reference_attention reference_sampling _C _host
    reference_verification workspace
    intervals spec_stats spec_record
    tokenizer detokenizer chat_template sequence tally request_metrics outputs request kv_shape
    latencies stats_log warning_signs
    proposers.base proposers.laws proposers.draft_tree
    source_tally metrics
    control kv_cache sampler structured models
    budget
    verifier proposers
    scheduler
    ab_test
    engine
    step_profile prometheus
    llm
    info data pairwise
    measure
    step_cost peers margin certify_settings
    bench certify
    batch_bench
    train.work_files
    train.dedupe train.student train.loop train.card train.corpus_settings
    train.prompts train.features
    train.data
    train.feature_source train.reduction train.writers
    train.batches
    train.corpus
    train.acceptance
    train tune
    cli server __main__
    """.strip().splitlines()
]
LAYER_OF = {f"specfast.{m}": depth for depth, line in enumerate(LAYERS) for m in line}


def layer_of(module: str) -> int:
    if module == "specfast":  # the public API
        return len(LAYERS) - 1
    name = module
    while name and name not in LAYER_OF:
        name = name.rpartition(".")[0]
    assert name, f"{module} has no place in LAYERS: give it one"
    return LAYER_OF[name]


def modules() -> dict[str, ast.Module]:
    def name(path: Path) -> str:
        return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    return {name(p): ast.parse(p.read_text()) for p in sorted((ROOT / "specfast").rglob("*.py"))}


MODULES = modules()


def imports(tree: ast.AST, typing_too: bool = True) -> Iterator[str]:
    """The specfast modules that a tree imports, within functions too."""
    for node in ast.iter_child_nodes(tree):
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "specfast")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: spell imports from the top"
            if node.module and node.module.split(".")[0] == "specfast":
                names = (a.name for a in node.names if a.name != "__version__")
                yield from (imported(node.module, name) for name in names)
        elif typing_too or not is_typing:
            yield from imports(node, typing_too)


def imported(package: str, name: str) -> str:
    """`from package import name`: the submodule if there is one, else the package."""
    inner = f"{package}.{name}"
    return inner if inner in MODULES or inner in LAYER_OF else package


def upward(module: str, tree: ast.AST) -> list[str]:
    """What a module imports from above."""
    return [i for i in imports(tree) if layer_of(i) > layer_of(module)]


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    assert not upward(module, MODULES[module])


def test_an_upward_import_is_seen():
    source = "if TYPE_CHECKING:\n    from specfast.engine import Engine\nfrom specfast import ops\n"
    assert upward("specfast.sampler", ast.parse(source)) == ["specfast.engine"]
    assert upward("specfast.cli.serve", ast.parse(source)) == []
    assert upward("specfast.engine", ast.parse("from specfast import LLM")) == ["specfast"]
    assert upward("specfast.config", ast.parse("def f():\n    import specfast.budget")) != []
    with pytest.raises(AssertionError, match="has no place"):
        layer_of("specfast.unheard_of")


def test_no_import_cycles():
    graph = {m: set(imports(tree, typing_too=False)) - {m} for m, tree in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_the_library_does_not_print():
    for module, tree in MODULES.items():
        if not module.startswith("specfast.cli"):
            calls = (n.func for n in ast.walk(tree) if isinstance(n, ast.Call))
            assert not any(ast.unparse(f) == "print" for f in calls), f"{module} prints"


# What the files of each folder may include: our folders and files, then outside headers by prefix.
CSRC = {
    "": ({"core", "params.h"}, ()),
    "core": ({"core"}, ()),
    "cpu": ({"cpu", "core", "kernels.h", "params.h"}, ("immintrin.h", "sys/")),
    "host": ({"host", "core"}, ("pybind11/",)),
    "cuda": ({"cuda", "core", "kernels.h", "params.h", "cuda_emu.h"}, ("cuda_runtime.h",)),
    "bind": ({"bind", "core", "kernels.h", "params.h"}, ("torch/", "Python.h", "dlfcn.h")),
}
STANDARD = re.compile(r"[a-z_0-9]+")


def trespasses(path: Path, text: str) -> list[str]:
    folder = path.relative_to(ROOT / "csrc").parent
    ours, outside = CSRC[str(folder).removeprefix(".")]
    found = []
    for quote, header in re.findall(r'#\s*include\s*([<"])([^>"]+)', text):
        if quote == '"':
            local = (path.parent / header).exists()
            place = (folder / header if local else Path(header)).parts[0]
            allowed = place in ours
        else:
            allowed = STANDARD.fullmatch(header) or header.startswith(outside)
        found += [] if allowed else [header]
    return found


SUFFIXES = (".h", ".cpp", ".cuh", ".cu")
CSRC_FILES = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in SUFFIXES)


@pytest.mark.parametrize("path", CSRC_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_stay_in_their_layer(path):
    assert not trespasses(path, path.read_text())


def test_a_trespassing_include_is_seen():
    kernel = ROOT / "csrc/cpu/linear.cpp"
    text = '#include <torch/all.h>\n#include "cuda/op.h"\n#include <cmath>\n#include "kernels.h"\n'
    assert trespasses(kernel, text) == ["torch/all.h", "cuda/op.h"]
    assert trespasses(ROOT / "csrc/core/tree.h", '#include "kernels.h"') == ["kernels.h"]
    assert trespasses(ROOT / "csrc/host/ngram.h", "# include <Python.h>") == ["Python.h"]
