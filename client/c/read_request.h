// From the structs of rope_types.h to those of the C++ library. Each function checks what C cannot
// express: struct sizes, null pointers, and numbers of enums. The library checks the rest.
//
// Threading:  Functions only.
// Ownership:  Tensors and norm weights are borrowed as the struct borrows them; all else is copied.
// Errors:     INVALID_ARGUMENT: the field and what it should be.
#ifndef ROPE_CLIENT_C_READ_REQUEST_H_
#define ROPE_CLIENT_C_READ_REQUEST_H_

#include <string_view>

#include "rope/client.h"
#include "rope/embedded.h"
#include "rope/rope_types.h"

namespace rope::c {

// Null options are the defaults.
Status ReadOptions(const rope_connect_options* source, client::ConnectOptions* options);
Status ReadOptions(const rope_engine_options* source, embedded::Options* options);
Status ReadOptions(const rope_call_options* source, client::CallOptions* options);

Status ReadRequest(const rope_request* source, client::RotateRequest* request);
// Of `request` sets what differs from call to call, and the length of `prepared`.
Status ReadValues(const rope_values* source, const client::PreparedRotation& prepared,
                  client::RotateRequest* request);
Status ReadRequest(const rope_describe_request* source, client::DescribeRequest* request);
Status ReadRequest(const rope_tables_request* source, client::TablesRequest* request);
Status ReadRequest(const rope_fingerprint_request* source, client::FingerprintRequest* request);

// What each call is given: the request and its options.
template <typename Source, typename Request>
Status ReadCall(const Source* source, const rope_call_options* source_options, Request* request,
                client::CallOptions* options) {
  Status status = ReadRequest(source, request);
  return status.ok() ? ReadOptions(source_options, options) : status;
}

// The number of a dtype, and the dtype of a number: 0 is FP32.
int32_t NumberOf(client::DType dtype);
Status ReadDType(int64_t number, std::string_view field, client::DType* dtype);

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_READ_REQUEST_H_
