# Checks the PTX of the kernels (-DPTX=FILE): its memory accesses, and that ptxas (-DPTXAS=FILE)
# assembles it for four generations of GPUs, without spills and local memory.
#   RotateVector: accesses tensors only with 16-byte loads and stores, and reads rows and the
#                 table of jobs as read-only global memory; ByValue: jobs as parameters.
#   All:          no local memory (spills, arrays indexed at run time), no generic addresses.
file(READ "${PTX}" text)
string(REGEX REPLACE "//[^\n]*" "" text "${text}")
string(REPLACE ";" "\n" text "${text}")
string(REPLACE ".visible .entry " ";" entries "${text}")
list(REMOVE_AT entries 0)
list(LENGTH entries count)
if(NOT count EQUAL 6)
  message(FATAL_ERROR "got ${count} kernels, want RotateVector, RotateScalar and RotateFused, each "
                      "over a table and with jobs by value")
endif()

foreach(entry IN LISTS entries)
  string(REGEX MATCH "Rotate(Vector|Scalar|Fused)(ByValue)?" name "${entry}")
  string(REGEX MATCHALL "[\n\t ](ld|st)\\.[a-z0-9.]+" accesses "${entry}")
  set(tensor_loads 0)
  set(tensor_stores 0)
  set(others 0)
  foreach(access IN LISTS accesses)
    string(STRIP "${access}" access)
    if(access MATCHES "^ld\\.param\\.")
      continue()
    elseif(access MATCHES "^ld\\.global\\.v4\\.[ubf]32$")
      math(EXPR tensor_loads "${tensor_loads} + 1")
    elseif(access MATCHES "^st\\.global\\.v4\\.[ubf]32$")
      math(EXPR tensor_stores "${tensor_stores} + 1")
    elseif(access MATCHES "^ld\\.global\\.nc\\.(v[24]\\.)?[ub](32|64)$")
      math(EXPR others "${others} + 1")
    elseif(NOT name MATCHES "RotateVector" AND access MATCHES "^(ld|st)\\.global\\.")
      math(EXPR others "${others} + 1")
    else()
      message(FATAL_ERROR "${name}: got ${access}, want 16-byte or read-only global accesses")
    endif()
  endforeach()
  message("${name}: ${tensor_loads} tensor loads and ${tensor_stores} stores of 16 bytes, "
          "${others} other accesses")
  # For each of 3 dtypes and 2 pairings: two heads of two vectors, loaded before and in the loop.
  if(name MATCHES "RotateVector" AND (tensor_loads LESS 48 OR tensor_stores LESS 24))
    message(FATAL_ERROR "${name}: got ${tensor_loads} and ${tensor_stores}, want 48 and 24")
  endif()
endforeach()

foreach(architecture 80 90 100 120)
  execute_process(COMMAND "${PTXAS}" -arch=sm_${architecture} --warn-on-spills
                          --warn-on-local-memory-usage --warning-as-error -o /dev/null "${PTX}"
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "ptxas for sm_${architecture}: got status ${status}, want 0")
  endif()
endforeach()
