#!/usr/bin/env bash
# deploy/release.sh in a repository of its own, with stubs in place of what it calls: what it
# refuses, what a dry run prints, and what is in dist/ afterwards. And the rules of
# .github/workflows/release.yml that need no runner.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "release_test: $*" >&2
  exit 1
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C STUB_CALLS=$folder/calls GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

# make_tree FOLDER: a repository of version 1.2.3. Each stub notes its call; the one that STUB_FAILS
# names fails.
make_tree() {
  mkdir -p "$1"/{deploy,.github,bin,tests/unit/client/c,tests/e2e/wire/1.2.0}
  touch "$1"/tests/{unit/client/c/librope-1.2.0.abi,e2e/wire/1.2.0/rotate.txt}
  cp deploy/release.sh "$1/deploy/"
  cat >"$1/deploy/stub" <<'STUB'
#!/usr/bin/env bash
set -euo pipefail
name=$(basename "$0")
echo "$name $*" >>"$STUB_CALLS"
[[ $name != "${STUB_FAILS:-}" ]] || exit 1
case $name in
  cpack)
    mkdir -p "$4/_CPack_Packages"
    echo deb >"$4/ropeserve_1.2.3_amd64.deb"
    ;;
  python.sh) echo wheel >"$1/ropeserve-1.2.3.whl" ;;
  pack.sh) mkdir -p "$1/bin" && echo program >"$1/bin/ropectl" ;;
esac
STUB
  chmod +x "$1/deploy/stub"
  for name in build.sh python.sh pack.sh; do ln -s stub "$1/deploy/$name"; done
  ln -s ../deploy/stub "$1/bin/cpack"
  echo 'import os; print("sbom", os.environ["SOURCE_DATE_EPOCH"])' >"$1/deploy/sbom.py"
  echo 'project(RopeServe VERSION 1.2.3 LANGUAGES CXX)' >"$1/CMakeLists.txt"
  printf '# Changelog\n\n## 1.2.3 (2026-01-31)\n' >"$1/.github/CHANGELOG.md"
  echo /dist/ >"$1/.gitignore"
  git -C "$1" init -q
  commit "$1"
}

commit() {
  git -C "$1" add -A
  GIT_COMMITTER_DATE='1700000000 +0000' git -C "$1" commit -q -m a
}

release() { (cd "$tree" && PATH=$tree/bin:$PATH deploy/release.sh "$@"); }

# expect_refusal TEXT ARGUMENT...: status 2, a message with the text, and nothing called or made.
expect_refusal() {
  local status=0
  release "${@:2}" >"$folder/output" 2>&1 || status=$?
  [[ $status == 2 ]] || fail "got status $status, want 2: $(cat "$folder/output")"
  grep -qF -e "$1" "$folder/output" || fail "got $(cat "$folder/output"), want $1"
  [[ ! -e $STUB_CALLS ]] || fail "was refused after $(cat "$STUB_CALLS")"
}

tree=$folder/tree
make_tree "$tree"
expect_refusal "got arguments ''"
expect_refusal "got arguments '--sideways 1.2.3'" --sideways 1.2.3
expect_refusal 'got 1.2.4, want 1.2.3' 1.2.4
echo >>"$tree/CMakeLists.txt"
expect_refusal 'the tree has changes:  M CMakeLists.txt' --dry_run 1.2.3
git -C "$tree" checkout -q CMakeLists.txt
sed -i 's/^## .*/## 1.2.3 (unreleased)/' "$tree/.github/CHANGELOG.md"
commit "$tree"
expect_refusal "has no section '## 1.2.3 (YYYY-MM-DD)'" 1.2.3
sed -i 's/^## .*/## 1.2.3 (2026-02-28)/' "$tree/.github/CHANGELOG.md"
commit "$tree"
git -C "$tree" mv tests/unit/client/c/librope-1.{2,1}.0.abi
commit "$tree"
expect_refusal 'librope-1.2.0.abi is missing' 1.2.3
git -C "$tree" mv tests/unit/client/c/librope-1.{1,2}.0.abi
git -C "$tree" mv tests/e2e/wire/1.{2,1}.0
commit "$tree"
expect_refusal 'wire/1.2.0 is missing' 1.2.3
git -C "$tree" mv tests/e2e/wire/1.{1,2}.0
commit "$tree"
mkdir "$tree/dist"
touch "$tree/dist/old"
expect_refusal 'dist is not empty' 1.2.3
rm -r "$tree/dist"

release --dry_run 1.2.3 >"$folder/steps"
[[ ! -e $STUB_CALLS && ! -e $tree/dist ]] || fail "a dry run did something"
for step in deploy/build.sh pack_debian deploy/python.sh archive_pack write_sbom write_sums; do
  grep -q ": $step" "$folder/steps" || fail "a dry run prints no $step: $(cat "$folder/steps")"
done

status=0
STUB_FAILS=pack.sh release 1.2.3 >"$folder/output" 2>&1 || status=$?
[[ $status == 1 && ! -e $tree/dist/SHA256SUMS ]] || fail "went on after a step that failed"
rm -r "$tree/dist" "$STUB_CALLS"

release 1.2.3 >"$folder/output" 2>&1
calls=$(cut -d' ' -f1 "$STUB_CALLS" | xargs)
[[ $calls == 'build.sh cpack python.sh pack.sh' ]] || fail "got calls $calls"
grep -q '^pack.sh .* rope_server ropectl$' "$STUB_CALLS" || fail "packs other programs"
grep -qx 'build.sh -DROPE_CUDA=ON' "$STUB_CALLS" || fail "may build without the kernels of GPUs"
got=$(cd "$tree/dist" && echo *)
name=ropeserve-1.2.3-linux-$(uname -m)
want="SHA256SUMS $name.spdx.json $name.tar.gz ropeserve-1.2.3.whl ropeserve_1.2.3_amd64.deb"
[[ $got == "$want" ]] || fail "got $got, want $want"
(cd "$tree/dist" && sha256sum --quiet -c SHA256SUMS) || fail "wrong checksums"
[[ $(wc -l <"$tree/dist/SHA256SUMS") == 4 ]] || fail "got $(cat "$tree/dist/SHA256SUMS")"
[[ $(cat "$tree/dist/$name.spdx.json") == 'sbom 1700000000' ]] || fail "another time of creation"
[[ -z $(git -C "$tree" status --porcelain) ]] || fail "the tree has changes afterwards"

mv "$tree/dist/SHA256SUMS" "$folder/first"
rm -r "$tree/dist"
release 1.2.3 >"$folder/output" 2>&1
cmp "$folder/first" "$tree/dist/SHA256SUMS" || fail "a second run gives other bytes"

readonly workflow=.github/workflows/release.yml
while read -r script; do
  [[ -f $script ]] || fail "$workflow: $script does not exist"
done < <(grep -oE '(deploy|tests)/[a-z_/]+\.(sh|py)' "$workflow")
if grep -E '^ *(- )?uses:' "$workflow" | grep -vE 'uses: [a-z-]+/[a-z-]+@v[0-9]+(\.[0-9]+)*$'; then
  fail "$workflow: an action without a version"
fi
echo "refusals, dry run, files, checksums: as they should be"
