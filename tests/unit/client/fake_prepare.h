// FakePrepare: what a server keeps of prepared requests, whose mood the test chooses, and counts of
// what clients sent.
#ifndef ROPE_TESTS_UNIT_CLIENT_FAKE_PREPARE_H_
#define ROPE_TESTS_UNIT_CLIENT_FAKE_PREPARE_H_

#include <map>
#include <mutex>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/error_details.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {

class FakePrepare {
 public:
  struct Counts {
    int questions = 0;  // Prepare
    int whole = 0;      // requests without an id
    int by_id = 0;      // requests with an id, known or not

    bool operator==(const Counts&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Counts& counts) {
      return out << counts.questions << " questions, " << counts.whole << " whole, " << counts.by_id
                 << " by id";
    }
  };

  // Answers Prepare and Rotate of `server`, the second with the request's tensors.
  explicit FakePrepare(FakeServer& server) : server_(server) {
    server.OnPrepare(
        [this](const auto& request, auto& response) { return Prepare(request, response); });
    server.OnRotate([this](grpc::CallbackServerContext&, const std::string& bytes,
                           std::string& reply) {
      v1::RotateRequest request;
      request.ParseFromString(bytes);
      const v1::Error error = Complete(request);
      reply = EchoOf(request).SerializeAsString();
      return error.code() == 0 ? grpc::Status::OK
                               : grpc::Status(static_cast<grpc::StatusCode>(error.code()),
                                              error.message(), proto::EncodeStatusDetails(error));
    });
  }

  // A client may have asked to prepare again and gone; the question is then still at the server.
  ~FakePrepare() { server_.Stop(); }
  FakePrepare(const FakePrepare&) = delete;
  FakePrepare& operator=(const FakePrepare&) = delete;

  // The answer to every later Prepare, unless it is OK.
  void Refuse(const grpc::Status& status) {
    const std::lock_guard<std::mutex> lock(mu_);
    refusal_ = status;
  }
  void Forget() {
    const std::lock_guard<std::mutex> lock(mu_);
    kept_.clear();
  }
  Counts counts() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return counts_;
  }
  v1::PrepareRequest asked() const {  // the last question
    const std::lock_guard<std::mutex> lock(mu_);
    return asked_;
  }
  v1::RotateRequest received() const {  // the last call by an id, as it was sent
    const std::lock_guard<std::mutex> lock(mu_);
    return received_;
  }

 private:
  grpc::Status Prepare(const v1::PrepareRequest& request, v1::PrepareResponse& response) {
    const std::lock_guard<std::mutex> lock(mu_);
    asked_ = request;
    ++counts_.questions;
    if (!refusal_.ok()) return refusal_;
    const auto number = ids_.try_emplace(request.SerializeAsString(), ids_.size() + 1).first;
    const std::string id = absl::StrCat("prepared-", number->second);
    kept_[id] = request;
    response.set_prepared_id(id);
    response.add_warnings("careful");
    return grpc::Status::OK;
  }

  // Makes a call by an id the whole request. Code 0: it is whole.
  v1::Error Complete(v1::RotateRequest& request) {
    const std::lock_guard<std::mutex> lock(mu_);
    v1::Error error;
    if (request.prepared_id().empty()) {
      ++counts_.whole;
      return error;
    }
    ++counts_.by_id;
    received_ = request;
    const auto it = kept_.find(request.prepared_id());
    if (it == kept_.end()) {
      error.set_code(grpc::StatusCode::NOT_FOUND);
      error.set_message("prepared_id: got an unknown id, want that of Prepare");
      error.set_reason(v1::REASON_PREPARED_NOT_FOUND);
      return error;
    }
    v1::RotateRequest whole = it->second.rotate();
    whole.MergeFrom(request);  // appends tensors
    whole.mutable_tensors()->DeleteSubrange(0, request.tensors_size());
    for (int i = 0; i < request.tensors_size(); ++i) {
      v1::Array array = it->second.rotate().tensors(i).array();
      if (request.tensors(i).array().shape_size() > 0) array.clear_shape();
      array.MergeFrom(request.tensors(i).array());
      *whole.mutable_tensors(i)->mutable_array() = array;
    }
    request = whole;
    return error;
  }

  FakeServer& server_;
  mutable std::mutex mu_;
  // Guarded by mu_.
  Counts counts_;
  grpc::Status refusal_;
  v1::PrepareRequest asked_;
  v1::RotateRequest received_;
  std::map<std::string, size_t> ids_;  // equal requests have equal ids
  std::map<std::string, v1::PrepareRequest> kept_;
};

}  // namespace rope::client

#endif  // ROPE_TESTS_UNIT_CLIENT_FAKE_PREPARE_H_
