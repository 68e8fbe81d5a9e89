"""Files inside tar archives, read one after the other without unpacking anything to disk."""
import lzma
import tarfile
import zlib
from pathlib import PurePosixPath

ARCHIVE_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)


def archive_error(path, e, expected):
    return ValueError(f'{path} is damaged, cut off or no tar archive ({e}); expected {expected}')


def tar_files(path, wanted, expected, fileobj=None):
    """Yield (name, bytes) of each file in a tar archive for which wanted(name) is true, in order.

    The archive may be compressed. Archives inside it are opened too: a file of STEM.tar is called
    STEM/name. Raises ValueError for a damaged archive; `expected` says what it should be.
    """
    try:
        with tarfile.open(path, 'r|*' if fileobj is None else 'r|', fileobj, 1 << 20) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # tarfile would keep every one, and there may be millions
                name = PurePosixPath(member.name)
                if member.isfile() and name.suffix == '.tar' and fileobj is None:
                    if member.size:
                        inner = tar_files(path, wanted, expected, tar.extractfile(member))
                        yield from ((f'{name.stem}/{n}', content) for n, content in inner)
                elif member.isfile() and wanted(member.name):
                    yield member.name, tar.extractfile(member).read()
    except ARCHIVE_ERRORS as e:
        raise archive_error(path, e, expected) from None


def listed_pictures(path, wanted, pictures, expected):
    """Yield (split, name, label, bytes) of the listed pictures of a tar archive, each once.

    pictures: {name without its extension: (split, label)}. wanted, expected: as in tar_files.
    Raises ValueError if some of them are not in the archive.
    """
    seen = set()
    for name, content in tar_files(path, wanted, expected):
        name = name.rpartition('/')[2]
        stem = name.rpartition('.')[0]
        if stem in pictures and stem not in seen:
            seen.add(stem)
            yield pictures[stem][0], name, pictures[stem][1], content
    missing = sorted(pictures.keys() - seen)
    if missing:
        raise ValueError(f'{path} lacks {len(missing)} pictures, such as {missing[0]}.jpg; get it again')
