"""Renders the folders of deploy/kubernetes: the part of kustomize that they use, and no other.

Patches are strategic merges, with the merge keys of Kubernetes for the lists that the patches have.
The name of a generated ConfigMap stays without kustomize's hash.
"""

import pathlib

import yaml

KEYS = {"apiVersion", "kind", "resources", "patches", "configMapGenerator"}
# What tells the entries of a list apart; new ones come first. Any other list is replaced whole.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "port",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def documents(path):
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def _merged_list(name, old, new):
    key = MERGE_KEYS.get(name)
    if key is None:
        return new
    patches = {entry[key]: entry for entry in new}
    merged = [merged_with(entry, patches.pop(entry[key], {})) for entry in old]
    return [*(merged_with({}, entry) for entry in patches.values()), *merged]


def merged_with(old, patch):
    """`old` with the fields of `patch`; null removes a field."""
    merged = dict(old)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = merged_with(merged.get(name, {}), value)
        elif isinstance(value, list):
            merged[name] = _merged_list(name, merged.get(name, []), value)
        else:
            merged[name] = value
    return merged


def identity(one):
    return one["kind"], one["metadata"]["name"]


def _patched(objects, patch):
    if identity(patch) not in [identity(one) for one in objects]:
        raise ValueError(f"a patch of {identity(patch)}, which does not exist")
    return [merged_with(one, patch) if identity(one) == identity(patch) else one for one in objects]


def render(folder):
    """The objects of a kustomization."""
    folder, objects = pathlib.Path(folder).resolve(), []
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(kustomization) - KEYS:
        raise ValueError(f"{folder}: got {sorted(unknown)}, want {sorted(KEYS)}")
    for name in kustomization.get("resources", ()):
        path = folder / name
        objects = objects + (render(path) if path.is_dir() else documents(path))
    for generator in kustomization.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"]}
        generated = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        objects = objects + [generated]
    for entry in kustomization.get("patches", ()):
        for patch in documents(folder / entry["path"]):
            objects = _patched(objects, patch)
    return objects
