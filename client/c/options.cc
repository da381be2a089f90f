#include "client/c/options.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "client/error.h"

namespace rope::c {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// These set `target`, or say that the value is of another kind.
bool Set(const Value& value, std::string* target) {
  *target = value.string_value();
  return value.has_string_value();
}

bool Set(const Value& value, bool* target) {
  *target = value.bool_value();
  return value.has_bool_value();
}

template <typename Integer>
bool Set(const Value& value, Integer* target) {
  constexpr double kExactMax = 0x1p53;  // of the integers that a double holds exactly
  const double max = std::min(kExactMax, static_cast<double>(std::numeric_limits<Integer>::max()));
  const double number = value.number_value();
  if (!(number >= 0 && number <= max && number == std::floor(number))) return false;
  *target = static_cast<Integer>(number);
  return value.has_number_value();
}

template <typename Period>
bool Set(const Value& value, std::chrono::duration<int64_t, Period>* target) {
  int64_t count = 0;
  const bool is_set = Set(value, &count);
  *target = std::chrono::duration<int64_t, Period>(count);
  return is_set;
}

template <typename T>
bool Set(const Value& value, std::optional<T>* target) {
  return Set(value, &target->emplace());
}

bool Set(const Value& value, std::vector<client::Transport>* target) {
  target->clear();
  for (const Value& name : value.list_value().values()) {
    for (const client::Transport each :
         {client::Transport::kRing, client::Transport::kMemfd, client::Transport::kInline}) {
      if (name.string_value() == Name(each)) target->push_back(each);
    }
  }
  const int count = value.list_value().values_size();
  return count > 0 && count == static_cast<int>(target->size());
}

// An object of names and texts.
template <typename Pair>
bool Set(const Value& value, std::vector<Pair>* target) {
  for (const auto& [name, text] : value.struct_value().fields()) {
    if (!text.has_string_value()) return false;
    target->push_back({name, text.string_value()});
  }
  return value.has_struct_value();
}

class Reader {
 public:
  explicit Reader(const char* json) {
    if (json == nullptr) return;
    const auto read = google::protobuf::util::JsonStringToMessage(json, &object_);
    if (!read.ok()) {
      status_ = client::InvalidField("options", std::string(read.message()), "a JSON object");
    }
  }

  // Reads an option if it is given.
  template <typename T>
  Reader& Read(const char* name, T* target) {
    const auto given = object_.fields().find(name);
    if (!status_.ok() || given == object_.fields().end()) return *this;
    if (!Set(given->second, target)) {
      status_ = client::InvalidField(std::string("options.") + name, "a value of another kind",
                                     "one as rope.h shows");
    }
    object_.mutable_fields()->erase(name);
    return *this;
  }

  // After all options have been read.
  Status End() const {
    if (!status_.ok() || object_.fields().empty()) return status_;
    return client::InvalidField("options." + object_.fields().begin()->first, "an unknown option",
                                "one that rope.h shows");
  }

 private:
  Struct object_;
  Status status_;
};

}  // namespace

Status ReadOptions(const char* json, client::ConnectOptions* options) {
  return Reader(json)
      .Read("timeout_ms", &options->timeout)
      .Read("require_serving", &options->require_serving)
      .Read("spin_us", &options->spin)
      .Read("max_message_bytes", &options->max_message_bytes)
      .Read("arena_bytes", &options->arena_bytes)
      .Read("staged_bytes", &options->staged_bytes)
      .Read("transports", &options->transports)
      .Read("tls", &options->tls.enabled)
      .Read("tls_ca_file", &options->tls.ca_file)
      .Read("tls_cert_file", &options->tls.cert_file)
      .Read("tls_key_file", &options->tls.key_file)
      .Read("tls_server_name", &options->tls.server_name)
      .Read("token", &options->token)
      .Read("token_file", &options->token_file)
      .End();
}

Status ReadOptions(const char* json, embedded::Options* engine, client::ConnectOptions* options) {
  return Reader(json)
      .Read("threads", &engine->threads)
      .Read("memory_bytes", &engine->memory_bytes)
      .Read("device_table_bytes", &engine->device_table_bytes)
      .Read("models", &engine->models)
      .Read("arena_bytes", &options->arena_bytes)
      .End();
}

Status ReadOptions(const char* json, client::CallOptions* options) {
  return Reader(json)
      .Read("timeout_ms", &options->timeout)
      .Read("attempts_max", &options->attempts_max)
      .Read("backoff_initial_ms", &options->backoff_initial)
      .Read("backoff_max_ms", &options->backoff_max)
      .Read("metadata", &options->metadata)
      .End();
}

}  // namespace rope::c
