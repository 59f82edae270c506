// The choice of drafted nodes, and what it learns, for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "host/arrays.h"
#include "host/calibration.h"
#include "host/node_choice.h"

namespace py = pybind11;

namespace {

using specfast::Array;
using specfast::Calibration;
using specfast::NodeChoice;
using specfast::Offset;

using Sources = std::optional<Array<int32_t>>;

specfast::ProposedTrees trees_of(const Array<int32_t>& parents, const Array<int32_t>& lengths,
                                 const Array<float>& confidence, const Sources& sources,
                                 const Array<int64_t>& seq_ids) {
  return {parents.data(), lengths.data(),   confidence.data(), sources ? sources->data() : nullptr,
          seq_ids.data(), parents.shape(0), parents.shape(1)};
}

py::array_t<bool> best(NodeChoice& self, Array<int32_t> parents, Array<int32_t> lengths,
                       Array<float> confidence, Sources sources, Array<int64_t> seq_ids,
                       Array<double> seconds, Array<double> context_seconds, int64_t num_decoding) {
  auto keep = self.best(trees_of(parents, lengths, confidence, sources, seq_ids),
                        {seconds.data(), context_seconds.data(), num_decoding});
  py::array_t<bool> out({parents.shape(0), parents.shape(1)});
  std::copy(keep.begin(), keep.end(), out.mutable_data());
  return out;
}

// Trees [B, N] without the nodes that aren't in keep, which holds the parent of each.
py::tuple kept_nodes(Array<bool> keep, Array<int32_t> tokens, Array<int32_t> parents,
                     Array<float> confidence, Sources sources) {
  const py::ssize_t batch = keep.shape(0), width = keep.shape(1);
  py::array_t<int32_t> lengths(batch);
  for (py::ssize_t b = 0; b < batch; b++)
    lengths.mutable_at(b) = std::count(keep.data(b, 0), keep.data(b, 0) + width, true);
  const py::ssize_t most = *std::max_element(lengths.data(), lengths.data() + batch);
  const std::vector<py::ssize_t> shape{batch, most};
  py::array_t<int32_t> kept_tokens(shape), kept_parents(shape), kept_sources(shape);
  py::array_t<float> kept_confidence(shape);
  std::fill_n(kept_tokens.mutable_data(), batch * most, -1);
  std::fill_n(kept_parents.mutable_data(), batch * most, -1);
  std::fill_n(kept_sources.mutable_data(), batch * most, 0);
  std::fill_n(kept_confidence.mutable_data(), batch * most, 0.0f);
  std::vector<int32_t> number(width);
  for (py::ssize_t b = 0; b < batch; b++) {
    int32_t count = 0;
    for (py::ssize_t i = 0; i < width; i++) {
      if (!keep.at(b, i)) continue;
      const int32_t parent = parents.at(b, i);
      kept_tokens.mutable_at(b, count) = tokens.at(b, i);
      kept_parents.mutable_at(b, count) = parent < 0 ? -1 : number[parent];
      kept_confidence.mutable_at(b, count) = confidence.at(b, i);
      if (sources) kept_sources.mutable_at(b, count) = sources->at(b, i);
      number[i] = count++;
    }
  }
  return py::make_tuple(kept_tokens, kept_parents, lengths, kept_confidence,
                        sources ? py::object(kept_sources) : py::none());
}

void observe(NodeChoice& self, Array<int32_t> parents, Array<int32_t> lengths,
             Array<float> confidence, Sources sources, Array<int64_t> seq_ids, Array<int32_t> path,
             Array<int32_t> num_accepted) {
  self.observe(trees_of(parents, lengths, confidence, sources, seq_ids), path.data(),
               num_accepted.data());
}

std::optional<double> known(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

void learn(Calibration& self, Array<double> confidence, Array<int32_t> depth,
           Array<bool> accepted) {
  std::vector<specfast::Outcome> outcomes;
  for (py::ssize_t i = 0; i < confidence.size(); i++)
    outcomes.push_back({confidence.at(i), depth.at(i), accepted.at(i)});
  self.observe(outcomes);
}

}  // namespace

void bind_choice(py::module_& m) {
  m.def("kept_nodes", &kept_nodes, "-> tokens, parents, lengths, confidence, sources");
  py::class_<NodeChoice>(m, "NodeChoice")
      .def(py::init<int>(), py::arg("num_sources"))
      .def("best", &best, "[B, N] bool: the nodes to keep.")
      .def("observe", &observe)
      .def("release", &NodeChoice::release)
      .def_property_readonly("calibration_error",
                             [](const NodeChoice& c) { return known(c.calibration_error()); });
  py::class_<Calibration>(m, "Calibration")
      .def(py::init())
      .def("log_odds", &Calibration::log_odds)
      .def("observe", &learn)
      .def("fade", &Calibration::fade)
      .def_property_readonly("error", [](const Calibration& c) { return known(c.error()); });
  py::class_<Offset>(m, "Offset")
      .def(py::init())
      .def_property_readonly("value", &Offset::value)
      .def("observe", &Offset::observe)
      .def("fade", &Offset::fade);
}
