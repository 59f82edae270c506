from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace

import pytest
import torch

import specfast
from specfast import info, ops
from specfast.info import Cuda, Demo, Extension, Info
from specfast.models import demo

FITTING = Info(
    specfast="0.1.0",
    torch="2.13.0+cpu",
    python="3.11.7",
    machine="x86_64",
    extension=Extension(compiler="GNU 12.2.0", tier="avx2", best_tier="avx2"),
    threads=2,
    cores=2,
    huge_pages="madvise",
    cuda=Cuda(),
    demo=Demo(),
)


def test_collect_looks_at_this_machine():
    found = info.collect()
    assert found.specfast == specfast.__version__
    assert found.torch == torch.__version__
    assert found.extension.path and os.path.exists(found.extension.path)
    assert found.extension.compiler
    assert found.extension.tier == ops.simd_tier()
    assert found.extension.error is None
    assert found.threads == torch.get_num_threads()


def test_what_is_found_is_plain_data():
    json.dumps(asdict(info.collect()), allow_nan=False)


def test_what_fits_gives_no_mismatch():
    assert FITTING.mismatches == []
    assert info.render(FITTING).endswith("All fits.")


def with_extension(**changes: object) -> Info:
    return replace(FITTING, extension=replace(FITTING.extension, **changes))


ON_GPU = Cuda(
    images=("sm_80", "sm_90"),
    toolkit="13.0",
    driver="13.1",
    torch="13.2",
    gpu="NVIDIA H200",
)


def on_cuda(**changes: object) -> Info:
    return replace(FITTING, cuda=replace(ON_GPU, **changes))


def test_a_gpu_that_fits_gives_no_mismatch():
    assert on_cuda().mismatches == []
    assert "for sm_80 sm_90;" in info.render(on_cuda()) and "H200" in info.render(on_cuda())


def test_kernels_without_a_gpu_give_no_mismatch():
    elsewhere = replace(FITTING, cuda=Cuda(images=("sm_80",), toolkit="13.0"))
    assert elsewhere.mismatches == []
    assert "kernels for sm_80; built by 13.0; torch is a CPU build; no driver" in info.render(
        elsewhere
    )


MISFITS = {
    "older than 2.10": replace(FITTING, torch="2.9.1"),
    "not built": replace(FITTING, extension=Extension(error="The ops are not built.")),
    "older than csrc": with_extension(outdated=True),
    "no AVX2": with_extension(tier="scalar", best_tier="scalar"),
    "set to scalar; this CPU runs avx512": replace(
        with_extension(tier="scalar", best_tier="avx512"), machine="aarch64"
    ),
    "3 threads on 2 cores": replace(FITTING, threads=3),
    "Huge pages are off": replace(FITTING, huge_pages="never"),
    "not the demo model": replace(FITTING, demo=Demo(error="x.gguf is not the demo model.")),
    "H200 is not used: this build has CPU kernels only": replace(
        FITTING, cuda=replace(ON_GPU, images=(), toolkit=None, driver=None)
    ),
    "T4 is not used: no kernel image fits it.": on_cuda(gpu="T4", misfit="no kernel image fits it"),
    "torch is a CPU build": on_cuda(torch=None, gpu=None),
    "The driver runs CUDA 12.9, but the CUDA kernels are built by 13.0": on_cuda(driver="12.9"),
    "torch has CUDA 12.8, but the CUDA kernels are built by 13.0": on_cuda(torch="12.8"),
}


@pytest.mark.parametrize("sentence", MISFITS)
def test_each_mismatch_is_one_sentence(sentence):
    (mismatch,) = MISFITS[sentence].mismatches
    assert sentence in mismatch and mismatch.endswith(".")
    assert f"! {mismatch}" in info.render(MISFITS[sentence])


def test_a_forced_tier_is_said():
    ops.set_simd_tier("scalar")
    assert info.collect().extension.tier == "scalar"
    assert info.collect().extension.best_tier == ops.best_simd_tier()


def test_ops_that_do_not_load_are_reported_not_raised(monkeypatch):
    monkeypatch.delattr(specfast, "ops")
    monkeypatch.setitem(sys.modules, "specfast.ops", None)
    found = info.collect()
    assert found.extension.path is None and found.extension.error in found.mismatches
    assert "none" in info.render(found)


def test_the_demo_is_looked_for_but_not_fetched(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECFAST_DEMO", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    assert Demo.look() == Demo()
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("SPECFAST_DEMO", str(tmp_path / "absent.gguf"))
    assert "absent.gguf" in (Demo.look().error or "")


def test_outdated_means_older_than_any_source(tmp_path):
    built, sources = tmp_path / "_C.abi3.so", tmp_path / "csrc"
    built.touch()
    assert not info._older_than(built, sources), "an installed wheel has no sources"
    (sources / "cpu").mkdir(parents=True)
    (sources / "cpu" / "linear.cpp").touch()
    os.utime(built, (2e9, 2e9))
    assert not info._older_than(built, sources)
    os.utime(built, (1e9, 1e9))
    assert info._older_than(built, sources)


@pytest.mark.parametrize(
    ("text", "word"), [("always [madvise] never", "madvise"), ("always never", None)]
)
def test_huge_pages(text, word, tmp_path, monkeypatch):
    monkeypatch.setattr(info, "HUGE_PAGES", tmp_path / "enabled")
    assert info._huge_pages() is None
    (tmp_path / "enabled").write_text(text)
    assert info._huge_pages() == word
