// The Python module itself: importing it registers the ops; it also answers for the SIMD tier.
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

PyMethodDef methods[] = {
    {"simd_tier", simd_tier, METH_NOARGS, "The SIMD tier in use: scalar, avx2 or avx512."},
    {"best_simd_tier", best_simd_tier, METH_NOARGS,
     "The widest SIMD tier that this build has and this CPU runs."},
    {"set_simd_tier", set_simd_tier, METH_O,
     "Forces a SIMD tier; ValueError if it can't run here."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  PyObject* m = PyModule_Create(&module);
  if (m && PyModule_AddStringConstant(m, "compiler", SPECFAST_COMPILER) == 0) return m;
  Py_XDECREF(m);
  return nullptr;
}
