// A test harness in one header: TEST registers a body, the CHECKs count what fails, main.cpp runs.
#pragma once
#include <cstring>
#include <iostream>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
// Thrown by a test that does not run on this machine.
struct Elsewhere {};

struct Register {
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline std::ostream& fail(const char* file, int line) {
  failures()++;
  return std::cout << file << ":" << line << ": ";
}

// The index of the first element whose bytes differ, or -1; so NaN equals NaN and 0 is not -0.
template <class T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); i++)
    if (memcmp(&a[i], &b[i], sizeof(T))) return (int64_t)i;
  return -1;
}

}  // namespace check

#define TEST(name)                                       \
  static void name();                                    \
  static check::Register name##_registered(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__) << #condition << "\n"
#define CHECK_EQ(a, b) \
  if (!((a) == (b)))   \
  check::fail(__FILE__, __LINE__) << #a << " = " << (a) << ", " #b " = " << (b) << "\n"
#define CHECK_BYTES(a, b)                                \
  if (int64_t i = check::first_difference(a, b); i >= 0) \
  check::fail(__FILE__, __LINE__) << #a " and " #b " differ first at " << i << "\n"
