"""Files inside archives, read one after the other without unpacking anything to disk. Strangers made them: a few bytes
may claim, or unpack to, more than any memory holds, so no file may be larger than it needs to be."""
import contextlib
import gzip
import tarfile
from pathlib import PurePosixPath

from engine.settings import Mistake

MOST_BYTES = 2 ** 26    # of a file that is read: pictures of ImageNet have 0.1 MB on average, texts up to 6 MB
LARGEST = 2 ** 36       # of an archive in an archive, and of a file that is passed over


@contextlib.contextmanager
def reading(said):
    """Around what reads a stranger's file: libraries raise exceptions of many types for damaged ones, and all of them
    become this Mistake."""
    try:
        yield
    except Mistake:
        raise
    except Exception as e:
        raise Mistake(f'{said} ({type(e).__name__}: {str(e)[:200]}); get it again') from None


def tar_files(path, wanted, most=MOST_BYTES, file=None):
    """Yield (name, bytes) of each file in a tar archive for which wanted(name) is true, in order.

    The archive may be compressed by gzip; then its name ends with gz. Archives inside it are opened too: a file of
    STEM.tar is called STEM/name. file: the open archive, if it is itself in a file; path is then its name. Raises
    Mistake for a damaged archive, or for a file of more than `most` bytes.
    """
    with reading(f'{path} is damaged, cut off or no tar archive'):
        file = file or (gzip.open if str(path).endswith('gz') else open)(path, 'rb')  # tarfile unpacks a MB at once
        with file, tarfile.open(path, 'r|', file, 2 ** 20) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # tarfile would keep every one, and there may be millions
                name, own = PurePosixPath(member.name), wanted(member.name)
                if member.issparse() or not 0 <= member.size <= (most if own else LARGEST):
                    raise tarfile.ReadError(f'{name} is sparse or has {member.size:,} bytes')
                if member.isfile() and own:
                    yield member.name, tar.extractfile(member).read()
                elif member.isfile() and member.size and name.suffix == '.tar':
                    inner = tar_files(f'{path}: {name}', wanted, most, tar.extractfile(member))
                    yield from ((f'{name.stem}/{n}', content) for n, content in inner)


def tar_named(path, wanted, most=MOST_BYTES):
    """Yield (name without its folders, bytes) of the files in a tar archive for which wanted(this name) is true."""
    for name, content in tar_files(path, lambda name: wanted(PurePosixPath(name).name), most):
        yield PurePosixPath(name).name, content
