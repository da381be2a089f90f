#!/usr/bin/env python3
"""Reads traces in OTLP's JSON with opentelemetry-proto, OpenTelemetry's own schema.

Prints a line for each resource, scope and span, with every field that is set. An unknown field, or
a value of another type than the schema's, is an error.

OTLP/JSON is Protobuf's JSON with two differences: ids are hex, where Protobuf has base64, and enums
are numbers alone. Ids are therefore translated first, and names of enums are refused.

Usage: otlp.py FILE
"""
import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

ID_BYTES = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
ENUMS = ("kind", "code")


def translated(name, value):
    """The value of a member of OTLP/JSON, as Protobuf's JSON has it."""
    if name in ID_BYTES:
        if value != value.lower() or len(value) != 2 * ID_BYTES[name]:
            raise ValueError(f"{name}: got {value}, want {2 * ID_BYTES[name]} lowercase digits")
        return base64.b64encode(bytes.fromhex(value)).decode()
    if name in ENUMS and not isinstance(value, int):
        raise ValueError(f"{name}: got {value}, want a number")
    if isinstance(value, dict):
        return {inner: translated(inner, one) for inner, one in value.items()}
    if isinstance(value, list):
        return [translated("", one) for one in value]
    return value


def attributes_of(message):
    pairs = []
    for attribute in message.attributes:
        value = attribute.value
        pairs.append(f"{attribute.key}={getattr(value, value.WhichOneof('value'))}")
    return pairs


def line_of(span):
    kind = trace_pb2.Span.SpanKind.Name(span.kind)
    status = trace_pb2.Status.StatusCode.Name(span.status.code)
    duration = span.end_time_unix_nano - span.start_time_unix_nano
    return " ".join([
        f"trace={span.trace_id.hex()}", f"span={span.span_id.hex()}",
        f"parent={span.parent_span_id.hex()}", kind, status,
        f"{span.start_time_unix_nano}+{duration}", span.name, *attributes_of(span)])


def main(path):
    with open(path, encoding="utf-8") as file:
        document = translated("", json.load(file))
    request = json_format.ParseDict(document, trace_service_pb2.ExportTraceServiceRequest())
    for resource in request.resource_spans:
        print("resource", *attributes_of(resource.resource))
        for scope in resource.scope_spans:
            print("scope", scope.scope.name, scope.scope.version)
            for span in scope.spans:
                print(line_of(span))


if __name__ == "__main__":
    main(sys.argv[1])
