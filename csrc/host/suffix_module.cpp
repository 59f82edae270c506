// The suffix trees and their drafter, for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "host/suffix_drafter.h"
#include "host/suffix_tree.h"

namespace py = pybind11;

namespace {

using specfast::Doubt;
using specfast::SuffixTree;
using Tokens = std::vector<int32_t>;

std::vector<std::pair<int32_t, int32_t>> continuations(const SuffixTree& tree,
                                                       const Tokens& context) {
  std::vector<std::pair<int32_t, int32_t>> found;
  if (const auto point = tree.find(context.data(), context.size()))
    tree.for_each_continuation(*point, 1, [&](int32_t token, int32_t count, int64_t) {
      found.emplace_back(token, count);
    });
  return found;
}

// What all drafts of a proposer share.
class Drafter {
 public:
  Drafter(Doubt doubt, Doubt pool_doubt, float floor, bool coupled)
      : doubt_(std::move(doubt)),
        pool_doubt_(std::move(pool_doubt)),
        floor_(floor),
        coupled_(coupled) {
    for (const Doubt& d : {doubt_, pool_doubt_})
      if (d.size() < 2 || *std::min_element(d.begin(), d.end()) < 0)
        throw std::invalid_argument("need a doubt of 0 or more for each length of a match");
  }

  py::tuple draft(const SuffixTree& text, const SuffixTree* pool, int depth, int nodes,
                  float temperature, uint64_t seed, const Tokens& behind) const {
    // A path of the tree holds a match and the draft behind it.
    const int longest = std::max(text.max_depth() - depth, 1);
    const auto tail = std::min<int64_t>(longest, text.num_tokens());
    Tokens end(text.tail(tail), text.tail(0));
    end.insert(end.end(), behind.begin(), behind.end());
    const auto matches = [&](const SuffixTree& tree) {
      return tree.ends_of(end.data(), end.size(), std::min<int>(longest, end.size()));
    };
    std::vector<specfast::SuffixSource> sources{
        {&text, behind.empty() ? text.ends(longest) : matches(text), &doubt_}};
    if (pool) sources.push_back({pool, matches(*pool), &pool_doubt_});
    const auto position = static_cast<uint32_t>(text.num_appended() + behind.size());
    auto tree = specfast::draft_suffixes(sources, {depth, nodes, floor_},
                                         {temperature, seed, position, coupled_});
    return py::make_tuple(std::move(tree.tokens), std::move(tree.parents),
                          std::move(tree.confidence));
  }

 private:
  Doubt doubt_, pool_doubt_;
  float floor_;
  bool coupled_;
};

}  // namespace

void bind_suffix(py::module_& m) {
  py::class_<SuffixTree>(m, "SuffixTree")
      .def(py::init<int, int64_t>(), py::arg("max_depth"), py::arg("max_bytes"))
      .def("__len__", &SuffixTree::num_tokens)
      .def_property_readonly("num_appended", &SuffixTree::num_appended)
      .def_property_readonly("num_documents", &SuffixTree::num_documents)
      .def_property_readonly("num_nodes", &SuffixTree::num_nodes)
      .def_property_readonly("num_bytes", &SuffixTree::bytes)
      .def_property_readonly_static("MAX_BYTES_PER_TOKEN",
                                    [](py::object) { return SuffixTree::kMaxBytesPerToken; })
      .def("append", [](SuffixTree& self,
                        const Tokens& tokens) { self.append(tokens.data(), tokens.size()); })
      .def("end_document", &SuffixTree::end_document)
      .def("drop_document", &SuffixTree::drop_document)
      .def("continuations", &continuations, py::arg("context"),
           "(token, occurrences) of what follows the context, the most frequent first.");
  py::class_<Drafter>(m, "SuffixDrafter")
      .def(py::init<Doubt, Doubt, float, bool>(), py::arg("doubt"), py::arg("pool_doubt"),
           py::arg("floor"), py::arg("coupled") = true)
      .def("draft", &Drafter::draft, py::arg("text"), py::arg("pool").none(true), py::arg("depth"),
           py::arg("nodes"), py::arg("temperature"), py::arg("seed"), py::arg("behind") = Tokens{},
           "tokens, parents, confidence of a tree behind the text's end, and behind other drafts.");
}
