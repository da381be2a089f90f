#!/usr/bin/env python3
"""Makes the libraries in a wheel that auditwheel has repaired keep to themselves; prints its path.

Usage: own_symbols.py WHEEL FOLDER        writes FOLDER/the same name

A C++ library exports the variables of inline functions as "unique" symbols, which the loader binds
to the first copy in the process, even where libraries were loaded apart from each other. Two copies
of gRPC then use each other's state, and crash. Here the symbols become ordinary ones, which are
looked up in the wheel's own libraries first.
"""
import pathlib
import subprocess
import sys
import tempfile

from elftools.elf.elffile import ELFFile

STB_GLOBAL, STB_GNU_UNIQUE = 1, 10
INFO_OFFSET = 4  # of st_info in an Elf64_Sym


def make_ordinary(path):
    """Rewrites the binding of a library's unique symbols."""
    with path.open("r+b") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        for index in range(symbols.num_symbols()):
            place = symbols["sh_offset"] + index * symbols["sh_entsize"] + INFO_OFFSET
            file.seek(place)
            info, = file.read(1)
            if info >> 4 == STB_GNU_UNIQUE:
                file.seek(place)
                file.write(bytes([STB_GLOBAL << 4 | info & 15]))


def main(wheel, folder):
    with tempfile.TemporaryDirectory() as made:
        run = [sys.executable, "-m", "wheel"]
        subprocess.run([*run, "unpack", "-d", made, wheel], check=True, stdout=sys.stderr)
        unpacked, = pathlib.Path(made).iterdir()
        for library in unpacked.rglob("*.so*"):
            make_ordinary(library)
        subprocess.run([*run, "pack", "-d", folder, unpacked], check=True, stdout=sys.stderr)
    print(pathlib.Path(folder, pathlib.Path(wheel).name))


if __name__ == "__main__":
    main(*sys.argv[1:])
