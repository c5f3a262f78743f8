// Runs the stories under tests/rendezvous/scenarios. With MUSTER_ACCEPT_SCENARIOS=1 in the
// environment, what really happens is written into them; review the difference.
#include "tests/rendezvous/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

// Tests run in the root of the repository.
constexpr const char* kFolder = "tests/rendezvous/scenarios";

std::vector<std::string> scenario_names() {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, missing)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Scenarios : public ::testing::TestWithParam<std::string> {};

TEST_P(Scenarios, GoAsTheyAreWritten) {
  const std::string path = std::string(kFolder) + '/' + GetParam() + ".txt";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Scenario scenario;
  const std::string outcome = scenario.run(text);
  EXPECT_EQ(scenario.problem(), "");
  if (std::getenv("MUSTER_ACCEPT_SCENARIOS") != nullptr) {
    std::ofstream(path) << outcome;
  } else {
    EXPECT_EQ(outcome, text);
  }
}

INSTANTIATE_TEST_SUITE_P(Rendezvous, Scenarios, ::testing::ValuesIn(scenario_names()),
                         [](const auto& scenario) { return scenario.param; });

TEST(Scenario, AreThere) { EXPECT_GE(scenario_names().size(), 15U); }

}  // namespace
}  // namespace muster::rendezvous::testing
