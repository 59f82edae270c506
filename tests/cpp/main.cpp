#include "check.h"

// An argument runs only the tests whose name contains it.
int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const check::Test& test : check::tests()) {
    if (argc > 1 && !strstr(test.name, argv[1])) continue;
    int before = check::failures();
    test.body();
    bool ok = check::failures() == before;
    (ok ? passed : failed)++;
    if (!ok) std::cout << "FAILED " << test.name << "\n";
  }
  std::cout << passed << " passed, " << failed << " failed" << std::endl;
  return failed || !passed;
}
