#include "tests/support/test_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <cmath>

namespace rope::testing {
namespace {

std::vector<std::string> CommandLine(const std::string& program,
                                     const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {program, "--listen=127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

// Lines that a server with these flags prints before it serves.
size_t ExpectedLines(const std::vector<std::string>& flags) {
  size_t lines = 1;
  for (const std::string& flag : flags) {
    if (flag.rfind("--listen=", 0) == 0 || flag.rfind("--metrics_listen=", 0) == 0) ++lines;
  }
  return lines;
}

}  // namespace

std::shared_ptr<grpc::Channel> NewChannelTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

TestServer::TestServer(const std::vector<std::string>& flags, Process::Errors errors,
                       const MemoryLimit* limit, const std::string& program)
    : process_(CommandLine(program, flags), errors, limit) {
  const std::string prefix = "listening on ";
  for (size_t i = 0; i < ExpectedLines(flags); ++i) {
    const std::string line = process_.ReadLine();
    if (address_.empty() && line.rfind(prefix, 0) == 0) {
      address_ = line.substr(prefix.size());
    } else {
      lines_.push_back(line);
    }
  }
}

std::unique_ptr<v1::RopeService::Stub> TestServer::NewStub() const {
  return v1::RopeService::NewStub(NewChannel());
}

v1::RotateRequest UnitRequest(int64_t position) {
  v1::RotateRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(2);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  request.mutable_positions()->set_start(position);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(v1::DTYPE_FP32);
  for (const int64_t length : {1, 1, 2}) array.add_shape(length);
  array.add_numbers(1);
  array.add_numbers(0);
  return request;
}

bool IsUnitAnswer(const v1::RotateResponse& response) {
  if (response.tensors_size() != 1 || response.tensors(0).array().numbers_size() != 2) return false;
  const v1::Array& array = response.tensors(0).array();
  return std::fabs(array.numbers(0) - std::cos(1.0)) < 1e-7 &&
         std::fabs(array.numbers(1) - std::sin(1.0)) < 1e-7;
}

bool Serves(v1::RopeService::Stub& stub) {
  grpc::ClientContext context;
  v1::RotateResponse response;
  return stub.Rotate(&context, UnitRequest(1), &response).ok() && IsUnitAnswer(response);
}

}  // namespace rope::testing
