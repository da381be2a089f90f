// Descriptions and tables of embeddings.
#include <cstring>
#include <memory>
#include <string>

#include "client/c/error.h"
#include "client/c/objects.h"
#include "client/c/read_request.h"
#include "client/c/struct_size.h"
#include "rope/rope.h"

using rope::Result;
using rope::Status;
using rope::c::CheckGiven;
using rope::c::Guarded;
using rope::client::CallOptions;
using rope::client::Client;

namespace {

// Makes a call of `Request` whose answer is JSON.
template <typename Request, typename Source>
rope_error* AskForJson(const rope_client* client, const Source* request,
                       const rope_call_options* options, char** json,
                       Result<std::string> (Client::*ask)(const Request&, const CallOptions&)
                           const) {
  return Guarded([&]() -> Status {
    Request call;
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = CheckGiven(json, "json");
    if (status.ok()) status = rope::c::ReadCall(request, options, &call, &call_options);
    if (!status.ok()) return status;
    const Result<std::string> text = (client->client.*ask)(call, call_options);
    if (!text.ok()) return text.status();
    auto copy = std::make_unique<char[]>(text->size() + 1);
    std::memcpy(copy.get(), text->c_str(), text->size() + 1);
    *json = copy.release();
    return {};
  });
}

}  // namespace

rope_error* rope_describe(const rope_client* client, const rope_describe_request* request,
                          const rope_call_options* options, char** json) {
  return AskForJson<rope::client::DescribeRequest>(client, request, options, json,
                                                   &Client::DescribeJson);
}

rope_error* rope_fingerprint(const rope_client* client, const rope_fingerprint_request* request,
                             const rope_call_options* options, char** json) {
  return AskForJson<rope::client::FingerprintRequest>(client, request, options, json,
                                                      &Client::FingerprintJson);
}

void rope_string_free(char* text) {
  delete[] text;
}

rope_error* rope_get_tables(const rope_client* client, const rope_tables_request* request,
                            const rope_call_options* options, rope_tables** tables) {
  return Guarded([&]() -> Status {
    rope::client::TablesRequest call;
    CallOptions call_options;
    Status status = CheckGiven(client, "client");
    if (status.ok()) status = CheckGiven(tables, "tables");
    if (status.ok()) status = rope::c::ReadCall(request, options, &call, &call_options);
    if (!status.ok()) return status;
    return rope::c::Give(client->client.GetTables(call, call_options), tables);
  });
}

rope_error* rope_tables_array(const rope_tables* tables, int32_t which, rope_array* array) {
  return Guarded([&]() -> Status {
    if (Status status = CheckGiven(tables, "tables"); !status.ok()) return status;
    const rope::client::TableArray* source = nullptr;
    if (which == ROPE_TABLES_TABLE) source = &tables->tables.table;
    if (which == ROPE_TABLES_COS) source = &tables->tables.cos;
    if (which == ROPE_TABLES_SIN) source = &tables->tables.sin;
    if (source == nullptr) {
      return rope::c::Invalid("which", std::to_string(which), "a ROPE_TABLES_... of rope_types.h");
    }
    rope_array given = ROPE_ARRAY_INIT;
    given.data = source->data.data();
    given.bytes = static_cast<int64_t>(source->data.size());
    given.shape = source->shape.data();
    given.rank = static_cast<int32_t>(source->shape.size());
    given.dtype = rope::c::NumberOf(source->dtype);
    return rope::c::WriteStruct(given, "array", array);
  });
}

const char* rope_tables_config_id(const rope_tables* tables) {
  return tables == nullptr ? "" : tables->tables.config_id.c_str();
}

double rope_tables_attention_factor(const rope_tables* tables) {
  return tables == nullptr ? 0 : tables->tables.attention_factor;
}

int32_t rope_tables_attention_factor_applied(const rope_tables* tables) {
  return tables != nullptr && tables->tables.attention_factor_applied ? 1 : 0;
}

int64_t rope_tables_seq_len(const rope_tables* tables) {
  return tables == nullptr ? 0 : tables->tables.seq_len;
}

int32_t rope_tables_depends_on_seq_len(const rope_tables* tables) {
  return tables != nullptr && tables->tables.depends_on_seq_len ? 1 : 0;
}

size_t rope_tables_warning_count(const rope_tables* tables) {
  return tables == nullptr ? 0 : tables->tables.warnings.size();
}

const char* rope_tables_warning(const rope_tables* tables, size_t index) {
  return tables == nullptr ? nullptr : rope::c::TextAt(tables->tables.warnings, index);
}

void rope_tables_free(rope_tables* tables) {
  delete tables;
}
