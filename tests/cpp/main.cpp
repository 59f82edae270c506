#include <chrono>
#include <cstdlib>
#include <exception>

#include "check.h"

// An argument runs only the tests whose name contains it. CHECK_SECONDS: none starts later.
int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const char* limit = getenv("CHECK_SECONDS");
  auto end = limit ? Clock::now() + std::chrono::seconds(atoi(limit)) : Clock::time_point::max();
  int passed = 0, failed = 0, not_run = 0;
  for (const check::Test& test : check::tests()) {
    if (argc > 1 && !strstr(test.name, argv[1])) continue;
    int before = check::failures();
    try {
      if (Clock::now() > end) throw check::Elsewhere();
      test.body();
    } catch (const check::Elsewhere&) {
      std::cout << "not run: " << test.name << "\n";
      not_run++;
      continue;
    } catch (const std::exception& error) {
      check::fail(test.name, 0) << error.what() << "\n";
    }
    bool ok = check::failures() == before;
    (ok ? passed : failed)++;
    if (!ok) std::cout << "FAILED " << test.name << std::endl;
  }
  std::cout << passed << " passed, " << failed << " failed";
  if (not_run) std::cout << ", " << not_run << " not run";
  std::cout << std::endl;
  return failed || !passed;
}
