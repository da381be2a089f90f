#!/usr/bin/env python3
"""Reads the errors of a server with grpcio-status and googleapis-common-protos, without our schema.

Prints a line for each error: reason, field, description and retry delay in milliseconds. Requests
are written by hand as bytes: an empty one, and tables until the queue is full.

Usage: status_details.py HOST:PORT
"""
import queue
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

SERVICE = "/rope.v1.RopeService/"
CONNECTIONS = 3  # one may have 128 calls under way
TABLES = 300     # the queue takes 256


def varint(value):
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def delimited(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def tables_request():
    """GetTablesRequest: 8192 positions of head_dim 128, which take 0.1 seconds."""
    rope = delimited(3, varint(3 << 3) + varint(128)) + varint(7 << 3) + varint(1)
    positions = delimited(1, varint(2 << 3) + varint(8192))
    return delimited(1, rope) + delimited(2, positions)


def details_of(error):
    """The messages of google.rpc in the status details, by class."""
    found = {}
    for detail in rpc_status.from_call(error).details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest,
                     error_details_pb2.RetryInfo):
            if detail.Is(kind.DESCRIPTOR):
                message = kind()
                detail.Unpack(message)
                found[kind.DESCRIPTOR.name] = message
    return found


def describe(error):
    details = details_of(error)
    info = details["ErrorInfo"]
    violation = details["BadRequest"].field_violations[0]
    delay_ms = 0
    if "RetryInfo" in details:
        delay_ms = details["RetryInfo"].retry_delay.ToTimedelta().total_seconds() * 1000
    return (f"{info.domain} {error.code().name} {info.reason} field={violation.field} "
            f"want={info.metadata['want']} retry_ms={delay_ms:g}")


def main(target):
    # Connections of their own: one may not have as many calls under way as the queue takes.
    channels = [grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
                for _ in range(CONNECTIONS)]
    try:
        channels[0].unary_unary(SERVICE + "Rotate")(b"", timeout=10)
    except grpc.RpcError as error:
        print(describe(error))
    ended = queue.Queue()
    calls = []
    for i in range(TABLES):
        get_tables = channels[i % CONNECTIONS].unary_unary(SERVICE + "GetTables")
        calls.append(get_tables.future(tables_request(), timeout=30))
        calls[-1].add_done_callback(ended.put)
    for _ in calls:
        error = ended.get(timeout=30).exception()
        if error is not None:
            print(describe(error))
            break
    for call in calls:
        call.cancel()
    for channel in channels:
        channel.close()


if __name__ == "__main__":
    main(sys.argv[1])
