#!/usr/bin/env bash
# The reference pages: Doxygen has no complaint about the public headers, and each of them has a
# page with its comment.
# Usage: tests/deploy/reference_test.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! grep -q '^ROPE_DOXYGEN:.*/doxygen$' "$1/CMakeCache.txt"; then
  echo "skipped: no doxygen"
  exit 77
fi

pages=$1/reference/html
rm -rf "$pages"
cmake --build "$1" --target reference
for header in client/include/rope/*.h; do
  name=$(basename "$header" .h)
  page=$pages/${name//_/__}_8h.html
  grep -q "Detailed Description" "$page" || { echo "no text about $name.h in $page" >&2 && exit 1; }
done
grep -q "blocks until the reply" "$pages/classrope_1_1client_1_1Client.html"
grep -q "rope_argument" "$pages/rope_8h.html"
echo "$(find "$pages" -name '*.html' | wc -l) pages"
