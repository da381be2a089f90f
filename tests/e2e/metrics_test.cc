// GET /metrics over a plain socket, as Prometheus does.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using ::testing::HasSubstr;

std::string Get(const std::string& path, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(fd, buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return answer;
}

TEST(MetricsTest, BuildInfoAndCountsOfAnsweredCalls) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  ASSERT_EQ(server.lines().size(), 1u);
  const std::string& line = server.lines().front();
  EXPECT_THAT(line, HasSubstr("metrics on http://127.0.0.1:"));
  const int port = std::stoi(line.substr(line.rfind(':') + 1));
  const auto stub = server.NewStub();
  ASSERT_TRUE(Serves(*stub));
  grpc::ClientContext context;
  v1::RotateResponse response;
  EXPECT_FALSE(stub->Rotate(&context, UnitRequest(-1), &response).ok());

  const std::string page = Get("/metrics", port);
  EXPECT_THAT(page, HasSubstr("rope_build_info{"));
  EXPECT_THAT(page, HasSubstr("version=\"0.1.0\""));
  EXPECT_THAT(page, HasSubstr("device=\"cpu\""));
  EXPECT_THAT(page, HasSubstr("rope_requests_total{code=\"OK\",method=\"Rotate\"} 1"));
  EXPECT_THAT(page,
              HasSubstr("rope_requests_total{code=\"INVALID_ARGUMENT\",method=\"Rotate\"} 1"));
}

}  // namespace
}  // namespace rope::testing
