"""Numeric arrays from MATLAB .mat files of version 5, as far as flowers102.py needs them."""
import struct
import zlib

import numpy as np

from tasks.decode import content_of

# code in the file -> number type
STORED = {1: 'i1', 2: 'u1', 3: 'i2', 4: 'u2', 5: 'i4', 6: 'u4', 7: 'f4', 9: 'f8', 12: 'i8', 13: 'u8'}
MATRIX, COMPRESSED = 14, 15
MOST_BYTES = 2 ** 24    # of a file, and of what is compressed in it; the largest of Flowers has 15,000
NUMERIC = range(6, 16)  # array classes double to uint64; lower ones are cells, structs, text, sparse arrays


def elements(content, order):
    """Yield (type, bytes) of the data elements in content. An element is a type and a length of 32
    bits each, then data padded to a multiple of 8 bytes. With at most 4 bytes of data, type and
    length may have 16 bits each, followed by 4 bytes with the data."""
    at = 0
    while at + 8 <= len(content):
        kind, length = struct.unpack_from(order + 'II', content, at)
        start = at + 8
        if kind >> 16:
            kind, length, start = kind & 0xffff, kind >> 16, at + 4
        if start + length > len(content) or start == at + 4 and length > 4:
            raise ValueError('cut off')
        yield kind, content[start:start + length]
        at = start + length if kind == COMPRESSED else at + 8 if start == at + 4 else start + -(-length // 8) * 8


def load_mat(path):
    """{name: array} of the real numeric arrays in a file. An array has the type in which it is
    stored, which may be narrower than its type in MATLAB. Raises ValueError for a damaged file or
    another version."""
    try:
        content = content_of(path, MOST_BYTES)
    except (OSError, ValueError) as e:
        raise ValueError(f'{path} cannot be read ({e}); get it again') from None
    order = {b'IM': '<', b'MI': '>'}.get(content[126:128])
    if order is None or content[:6] != b'MATLAB':
        raise ValueError(f'{path} is no MATLAB file of version 5; get it again')
    arrays, room = {}, MOST_BYTES
    try:
        for kind, body in elements(content[128:], order):
            if kind == COMPRESSED:
                unzip = zlib.decompressobj()
                body = unzip.decompress(body, room + 1)
                room -= len(body)
                if room < 0 or not unzip.eof:
                    raise ValueError(f'cut off, or more than {MOST_BYTES:,} bytes')
                (kind, body), = elements(body, order)
            if kind != MATRIX:
                continue
            (_, flags), (_, shape), (_, name), *parts = elements(body, order)
            if struct.unpack_from(order + 'I', flags)[0] & 0xff in NUMERIC:
                kind, numbers = parts[0]  # a second part would be imaginary
                arrays[name.decode()] = np.frombuffer(numbers, order + STORED[kind]).reshape(
                    np.frombuffer(shape, order + 'i4'), order='F')
    except (ValueError, KeyError, IndexError, struct.error, zlib.error) as e:
        raise ValueError(f'{path} is a damaged MATLAB file ({e}); get it again') from None
    return arrays
