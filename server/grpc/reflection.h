// WithoutReflection: takes gRPC's reflection out of one ServerBuilder. Its library puts it into
// every builder of the process.
//
// Threading:  A value.
#ifndef ROPE_SERVER_GRPC_REFLECTION_H_
#define ROPE_SERVER_GRPC_REFLECTION_H_

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>

#include <memory>
#include <vector>

namespace rope::server {

class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return dynamic_cast<grpc::reflection::ProtoServerReflectionPlugin*>(plugin.get()) != nullptr;
    });
  }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_REFLECTION_H_
