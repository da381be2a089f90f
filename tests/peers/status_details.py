#!/usr/bin/env python3
"""Reads the errors of a server with grpcio-status and googleapis-common-protos, without our schema.

Prints a line for each error: reason, field, description and retry delay in milliseconds. Requests
are written by hand as bytes: an empty one, and warm-ups until the queue is full.

Usage: status_details.py HOST:PORT
"""
import struct
import sys

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

SERVICE = "/rope.v1.RopeService/"
WARM_UPS = 64  # the queue takes 16


def varint(value):
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def delimited(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def warm_up_request(theta):
    """WarmUpRequest: 64 Ki positions of head_dim 128; each theta has tables of its own."""
    config = varint(2 << 3 | 1) + struct.pack("<d", theta) + varint(3 << 3) + varint(128)
    rope = delimited(3, config) + varint(7 << 3) + varint(1)
    return delimited(1, rope) + varint(3 << 3) + varint(1 << 16)


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
    with grpc.insecure_channel(target) as channel:
        try:
            channel.unary_unary(SERVICE + "Rotate")(b"", timeout=10)
        except grpc.RpcError as error:
            print(describe(error))
        warm_up = channel.unary_unary(SERVICE + "WarmUp")
        calls = [warm_up.future(warm_up_request(10000 + i), timeout=30) for i in range(WARM_UPS)]
        for call in reversed(calls):  # the last find the queue full
            error = call.exception()
            if error is not None:
                print(describe(error))
                break
        for call in calls:
            call.cancel()


if __name__ == "__main__":
    main(sys.argv[1])
