// A client of another language reads errors of a real server without our schema: Python with the
// packages grpcio-status and googleapis-common-protos. ROPE_GRPC_STATUS_PYTHON names a Python that
// has them.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/matchers.h"
#include "tests/support/process.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

TEST(StatusDetailsTest, PackagesOfGoogleRpcReadReasonFieldAndRetryDelay) {
  const char* const python = std::getenv("ROPE_GRPC_STATUS_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "the package grpcio-status is not here: set ROPE_GRPC_STATUS_PYTHON to a "
                    "Python that has it";
  }
  const TestServer server;
  EXPECT_THAT(
      RunProgram(
          {python, "-B", ROPE_SOURCE_DIR "/tests/peers/status_details.py", server.address()}),
      Exits(0, MatchesRegex("rope.v1 INVALID_ARGUMENT INVALID_FIELD field=rope "
                            "want=exactly one of model, config_id, config, config_json retry_ms=0\n"
                            "rope.v1 RESOURCE_EXHAUSTED QUEUE_FULL field=queue "
                            "want=at most [0-9]+ retry_ms=20\n")));
}

}  // namespace
}  // namespace rope::testing
