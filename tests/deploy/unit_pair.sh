# Sourced by scripts: the smallest rotation that proves that a server works. It rotates (1, 0) at
# position 1 to (cos 1, sin 1).
# shellcheck shell=bash

# Flags for ropectl rotate, in addition to --config, --q and --output_q.
# shellcheck disable=SC2034  # used by scripts that source this file
readonly unit_pair_flags=(--pairing=half --layout=SHD --start=1)

# write_unit_pair FOLDER: writes config.json and q.npy there.
write_unit_pair() {
  local header="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2), }"
  {
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header"
    printf '\x00\x00\x80\x3f\x00\x00\x00\x00'
  } >"$1/q.npy"
  echo '{"model_type": "llama", "rope_theta": 10000, "head_dim": 2}' >"$1/config.json"
}

# is_rotated_unit_pair FILE.npy: succeeds if the file holds (cos 1, sin 1); else prints its numbers.
is_rotated_unit_pair() {
  local got
  got=$(tail -c 8 "$1" | od -An -tx1 | tr -d ' \n')
  [[ $got == 40510a3fa46a573f ]] && return
  echo "$1: got the bytes $got, want those of cos 1 and sin 1" >&2
  return 1
}
