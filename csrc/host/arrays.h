// Arrays between numpy and C++.
#pragma once

#include <pybind11/numpy.h>

#include <utility>
#include <vector>

namespace specfast {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;

// A numpy array that owns the vector's memory.
template <class T>
py::array_t<T> to_array(std::vector<T>& values) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule free(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(owned->size(), owned->data(), free);
}

}  // namespace specfast
