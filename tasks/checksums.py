"""Checksums of files, for --verify=true and for what prepare/ writes and downloads."""
import hashlib
import os
from pathlib import Path

from tqdm import tqdm

from engine.mistakes import Mistake
from tasks.files import read_meta


def verify(folder):
    """Compare all files of a prepared dataset with their digests. Raises Mistake if one differs."""
    meta = read_meta(folder)  # which compares meta.json with its checksum, if it has one
    if folder and 'sha256' not in meta:
        raise Mistake(f'{folder}/meta.json has no checksum, because an earlier version wrote it; '
                      'prepare the dataset again')
    for name, expected in meta['files'].items():
        path = Path(folder) / name
        if not path.is_file() or digest(path) != expected:
            raise Mistake(f'{path} is not what was written; prepare the dataset again')
    print(f'{folder or "functions"}: every file is what was written')


def digest(path, kind='sha256'):
    """The checksum of a file, in hex. A terminal shows the progress after three seconds."""
    checksum = hashlib.new(kind)
    size = os.path.getsize(path)
    with open(path, 'rb') as file:
        with tqdm.wrapattr(file, 'read', size, desc=str(path), delay=3, disable=None) as watched:
            while chunk := watched.read(2 ** 20):
                checksum.update(chunk)
    return checksum.hexdigest()
