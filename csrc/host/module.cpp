// specfast._host: host data structures that Python drives.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "host/ngram.h"

namespace py = pybind11;

namespace {

void bind_ngram(py::module_& m) {
  using specfast::NgramIndex;
  py::class_<NgramIndex>(m, "NgramIndex")
      .def(py::init<int, int>(), py::arg("min_n"), py::arg("max_n"))
      .def("__len__", &NgramIndex::size)
      .def_property_readonly("num_ngrams", &NgramIndex::num_ngrams)
      .def("append",
           [](NgramIndex& self, const std::vector<int32_t>& tokens) {
             self.append(tokens.data(), tokens.size());
           })
      .def("truncate", &NgramIndex::truncate)
      .def("draft", [](const NgramIndex& self, int k) {
        auto draft = self.draft(k);
        return std::make_pair(std::move(draft.tokens), draft.match_length);
      });
}

void bind_philox(py::module_& m) {
  using Words = std::array<uint32_t, 4>;
  m.def(
      "philox",
      [](uint64_t seed, const Words& counter) {
        auto x = specfast::philox<uint32_t>({counter[0], counter[1], counter[2], counter[3]}, seed);
        return Words{x.x0, x.x1, x.x2, x.x3};
      },
      py::arg("seed"), py::arg("counter"));
}

}  // namespace

PYBIND11_MODULE(_host, m) {
  m.doc() = "Host data structures of specfast.";
  bind_ngram(m);
  bind_philox(m);
}
