// ropectl describe --plot against a real server: the SVG must be well-formed and show the numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

// Describes an error in the SVG; empty: none. Checks that tags nest and close, attributes are
// quoted, and there is no stray markup.
std::string XmlTrouble(const std::string& xml) {
  static const std::regex tag(
      R"(<(/?)([A-Za-z]+)((?: [a-z][A-Za-z0-9-]*="[^"<>]*")*)\s*(/?)>|<\?xml[^<>]*\?>)");
  static const std::regex text(R"((?:[^<>&]|&(?:amp|lt|gt|quot);)*)");
  std::vector<std::string> open;
  auto at = xml.cbegin();
  for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end; ++it) {
    const std::smatch& match = *it;
    if (!std::regex_match(at, match[0].first, text)) return "text before " + match.str();
    at = match[0].second;
    const std::string name = match[2];
    if (name.empty() || match[4].length() > 0) continue;
    if (match[1].length() == 0) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "closes " + name;
    } else {
      open.pop_back();
    }
  }
  if (!open.empty()) return "leaves open " + open.back();
  return std::regex_match(at, xml.cend(), text) ? "" : "text at its end";
}

size_t PointsOf(const std::string& svg, const std::string& id) {
  const size_t at = svg.find("<polyline id=\"" + id + "\"");
  if (at == std::string::npos) return 0;
  const auto begin = svg.begin() + static_cast<std::ptrdiff_t>(at);
  return static_cast<size_t>(std::count(begin, std::find(begin, svg.end(), '>'), ','));
}

class PlotTest : public ::testing::Test {
 protected:
  Outcome Describe(const std::string& config, std::vector<std::string> flags) {
    const std::string path = TemporaryFolder() + "/config.json";
    std::ofstream(path) << config;
    flags.insert(flags.begin(), {RopectlProgram(), "describe", "--config=" + path,
                                 "--target=" + server_.address()});
    return RunProgram(flags);
  }

  // The SVG for a config.
  std::string Plot(const std::string& config) {
    const std::string path = TemporaryFolder() + "/plot.svg";
    const Outcome outcome = Describe(config, {"--plot=" + path});
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  TestServer server_;
};

TEST_F(PlotTest, ClassicEightfoldExtensionShowsItsEdgesAndLengths) {
  const std::string svg = Plot(R"({"model_type": "llama", "head_dim": 256, "rope_theta": 10000,
      "max_position_embeddings": 65536, "rope_scaling": {"rope_type": "llama3", "factor": 8,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})");
  EXPECT_EQ(XmlTrouble(svg), "");
  for (const char* id : {"inv-freq-original", "inv-freq-scaled", "inv-freq-result",
                         "wavelength-original", "wavelength-result"}) {
    EXPECT_EQ(PointsOf(svg, id), 128u) << id;
  }
  EXPECT_THAT(svg, HasSubstr("<g id=\"ramp-edges\" data-wavelengths=\"2048 8192\">"));
  EXPECT_THAT(svg, HasSubstr("<g id=\"lengths\" data-lengths=\"8192 65536\">"));
  EXPECT_THAT(svg, HasSubstr(">llama3: theta 10000, rotary_dim 256, factor 8, original length "
                             "8192, attention factor 1<"));
  for (const char* label :
       {"inverse frequency (radians per position)", "frequency index i (of channel pair)",
        "wavelength, length (positions)", "distance of q and k (positions)",
        "q.k over q.k at distance 0 (ratio)", ">fully scaled (1/8)<", ">original length 8192<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST_F(PlotTest, YarnShowsItsEdgesAsWavelengths) {
  const std::string svg = Plot(R"({"model_type": "llama", "head_dim": 64, "rope_theta": 150000,
      "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 32,
      "original_max_position_embeddings": 4096, "truncate": false}})");
  EXPECT_EQ(XmlTrouble(svg), "");
  // beta_fast 32 and beta_slow 1 over 4096 positions.
  EXPECT_THAT(svg, HasSubstr("<g id=\"ramp-edges\" data-wavelengths=\"128 4096\">"));
}

TEST_F(PlotTest, ZeroFrequenciesAreLeftOut) {
  const std::string svg = Plot(R"({"head_dim": 64, "rope_theta": 10000, "rope_scaling":
      {"rope_type": "proportional", "partial_rotary_factor": 0.25}})");
  EXPECT_EQ(XmlTrouble(svg), "");
  EXPECT_EQ(PointsOf(svg, "inv-freq-result"), 8u);
}

TEST_F(PlotTest, FileThatCannotBeWrittenIsAFailure) {
  EXPECT_THAT(Describe(R"({"head_dim": 64})", {"--plot=/does/not/exist/plot.svg"}),
              Exits(1, HasSubstr("/does/not/exist/plot.svg: cannot be written")));
}

}  // namespace
}  // namespace rope::testing
