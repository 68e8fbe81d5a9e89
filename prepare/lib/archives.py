"""Files inside archives, read one after the other without unpacking anything to disk. Strangers
made them: a few bytes may claim, or unpack to, more than any memory holds."""
import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath

from engine.settings import Mistake

ARCHIVE_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)
UNPACK = {b'\x1f\x8b\x08': gzip.open, b'BZh': bz2.open, b'\xfd7z': lzma.open}  # in pieces; tarfile unpacks a MB at once
DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED  # kinds of zip files of which no more is unpacked than is read
MOST_BYTES = 2 ** 26    # of a file in an archive: pictures of ImageNet have 0.1 MB on average, texts up to 6 MB
LARGEST_TAR = 2 ** 42   # bytes of an archive in an archive, or of a file that is not read; ImageNet-21K has 2 ** 40


def archive_error(path, e, expected):
    return Mistake(f'{path} is damaged, cut off or no tar archive ({e}); expected {expected}; get it again')


class Header(tarfile.TarInfo):
    """A header in a tar archive. tarfile reads long names and lists of holes whatever their size."""

    @classmethod
    def fromtarfile(cls, tar):
        try:
            return super().fromtarfile(tar)
        except (ValueError, IndexError, OverflowError, RecursionError) as e:  # what odd headers cause
            raise tarfile.ReadError(f'{type(e).__name__}: {e}') from None

    @classmethod
    def frombuf(cls, *args):
        header = super().frombuf(*args)
        most = LARGEST_TAR if header.isreg() else 2 ** 20
        if header.type == tarfile.GNUTYPE_SPARSE or not 0 <= header.size <= most:
            raise tarfile.ReadError(f'{header.name} is sparse or has {header.size:,} bytes')
        return header

    def _proc_gnusparse_10(self, *args):
        raise tarfile.ReadError('a sparse file')


def files_of(tar):
    """The files in an open tar archive."""
    while (member := tar.next()) is not None:
        tar.members.clear()  # tarfile would keep every one, and there may be millions
        if member.issparse() or not 0 <= member.size <= LARGEST_TAR:
            raise tarfile.ReadError(f'{member.name} is sparse or has {member.size:,} bytes')
        if member.isfile():
            yield member


def file_in(tar, member, most=MOST_BYTES):
    """The bytes of a file in an open tar archive, at most `most`."""
    if member.size > most:
        raise tarfile.ReadError(f'{member.name} has {member.size:,} bytes, and may have {most:,}')
    return tar.extractfile(member).read()


def unpacked(path):
    """A file opened for reading; if it is compressed by gzip, bzip2 or xz, what was compressed."""
    with open(path, 'rb') as f:
        start = f.read(3)
    return UNPACK.get(start, open)(path, 'rb')


def tar_files(path, wanted, expected, most=MOST_BYTES, inside=None):
    """Yield (name, bytes) of each file in a tar archive for which wanted(name) is true, in order.

    The archive may be compressed. Archives inside it are opened too: a file of STEM.tar is called
    STEM/name. Raises Mistake for a damaged archive, or for a file of more than `most` bytes;
    `expected` says what it should be.
    """
    try:
        with inside or unpacked(path) as f, tarfile.open(path, 'r|', f, 1 << 20, tarinfo=Header) as tar:
            for member in files_of(tar):
                name = PurePosixPath(member.name)
                if name.suffix == '.tar' and not inside:
                    if member.size:
                        inner = tar_files(path, wanted, expected, most, tar.extractfile(member))
                        yield from ((f'{name.stem}/{n}', content) for n, content in inner)
                elif wanted(member.name):
                    yield member.name, file_in(tar, member, most)
    except ARCHIVE_ERRORS as e:
        raise archive_error(path, e, expected) from None


def zip_files(path, wanted, expected):
    """tar_files of a zip archive."""
    try:
        with zipfile.ZipFile(path) as z:
            for file in z.infolist():
                if wanted(file.filename):
                    if file.file_size > MOST_BYTES or file.compress_type not in DEFLATED:
                        raise Mistake(f'{file.filename} has {file.file_size:,} bytes and kind {file.compress_type}')
                    with z.open(file) as f:
                        yield file.filename, f.read(file.file_size)
    except Exception as e:  # of many types, depending on the damage
        raise Mistake(f'{path} is damaged or cut off ({e}); expected {expected}; get it again') from None


def listed_pictures(path, wanted, pictures, expected):
    """Yield (split, name, label, bytes) of the listed pictures of a tar archive, each once.

    pictures: {name without its extension: (split, label)}. wanted, expected: as in tar_files.
    Raises Mistake if some of them are not in the archive.
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
        raise Mistake(f'{path} lacks {len(missing)} pictures, such as {missing[0]}.jpg; get it again')
