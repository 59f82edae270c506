// The Python module itself: importing it registers the ops; it also answers for the SIMD tier and
// the CUDA kernels.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace {

using specfast::cpu::Tier;

PyObject* simd_tier(PyObject*, PyObject*) {
  return PyUnicode_FromString(specfast::cpu::tier_name(specfast::cpu::current_tier()));
}

PyObject* best_simd_tier(PyObject*, PyObject*) {
  return PyUnicode_FromString(specfast::cpu::tier_name(specfast::cpu::best_tier()));
}

PyObject* set_simd_tier(PyObject*, PyObject* argument) {
  PyObject* utf8 = PyUnicode_AsUTF8String(argument);
  if (!utf8) return nullptr;
  const char* name = PyBytes_AsString(utf8);
  bool done = false;
  for (Tier tier : {Tier::scalar, Tier::avx2, Tier::avx512})
    if (!strcmp(name, specfast::cpu::tier_name(tier))) done = specfast::cpu::set_tier(tier);
  if (!done)
    PyErr_Format(PyExc_ValueError, "SIMD tier '%s' is not available on this machine", name);
  Py_DECREF(utf8);
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

#ifdef SPECFAST_WITH_CUDA
PyObject* cuda_driver(PyObject*, PyObject*) {
  return PyLong_FromLong(specfast::cuda::driver_version());
}

PyObject* cuda_misfit(PyObject*, PyObject* arguments) {
  int major, minor;
  if (!PyArg_ParseTuple(arguments, "ii", &major, &minor)) return nullptr;
  return PyUnicode_FromString(specfast::cuda::misfit(major, minor).c_str());
}

int add_constants(PyObject* m) {
  return PyModule_AddStringConstant(m, "cuda_images", specfast::cuda::built_images()) |
         PyModule_AddIntConstant(m, "cuda_toolkit", specfast::cuda::toolkit_version());
}
#else
int add_constants(PyObject* m) { return PyModule_AddStringConstant(m, "cuda_images", ""); }
#endif

PyMethodDef methods[] = {
    {"simd_tier", simd_tier, METH_NOARGS, "The SIMD tier in use: scalar, avx2 or avx512."},
    {"best_simd_tier", best_simd_tier, METH_NOARGS,
     "The widest SIMD tier that this build has and this CPU runs."},
    {"set_simd_tier", set_simd_tier, METH_O,
     "Forces a SIMD tier; ValueError if it can't run here."},
#ifdef SPECFAST_WITH_CUDA
    {"cuda_driver", cuda_driver, METH_NOARGS,
     "The newest CUDA that the driver runs, 13000 for 13.0; 0: no driver."},
    {"cuda_misfit", cuda_misfit, METH_VARARGS,
     "Why no kernel runs on a device of compute capability (major, minor); empty: they do."},
#endif
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* m = PyModule_Create(&module);
  if (m && PyModule_AddStringConstant(m, "compiler", SPECFAST_COMPILER) == 0 &&
      add_constants(m) == 0)
    return m;
  Py_XDECREF(m);
  return nullptr;
}
