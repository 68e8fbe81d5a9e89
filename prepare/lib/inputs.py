"""What all scripts in prepare/ begin with: the words of a command line, files that are downloaded or one's own, and
archives.

A download resumes, shows its progress, and is compared with its checksum. A file gets its name only when it is
complete. Files inside archives are read one after the other without unpacking anything to disk. Strangers made them: a
few bytes may claim, or unpack to, more than any memory holds, so no file may be larger than it needs to be.
"""
import argparse
import gzip
import os
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from engine.settings import Mistake, one_line_errors, reading
from lib.files import hold
from tasks.files import digest

PATIENCE = 30           # seconds to wait for a server that sends nothing
MOST_BYTES = 2 ** 26    # of a file that is read: pictures of ImageNet have 0.1 MB on average, texts up to 6 MB
LARGEST = 2 ** 36       # of an archive in an archive, and of a file that is passed over


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The script's docstring as it is written, and each option with its default."""


class Parser(argparse.ArgumentParser):
    """A mistake is reported in one line."""

    def error(self, message):
        raise Mistake(f'{message}; --help lists all options')


# ---- options: what argparse's add_argument is called with -----------------------------------------------------------


def option(name, help, **settings):
    return name, settings | {'help': help}


def choice(name, help, *values):
    """One of the values, by default the first."""
    return option(name, help, type=type(values[0]), choices=values, default=values[0])


def number(name, help, default, low, high):
    """A number from low to high, of the type of its default."""
    def number(text):
        if not low <= type(default)(text) <= high:
            raise argparse.ArgumentTypeError(f'{text} must be between {low} and {high}')
        return type(default)(text)
    return option(name, help, type=number, default=default)


def local(what, **settings):
    """--from: the user's own copy, or what else it is."""
    return option('--from', what, dest='source', metavar='PATH', type=Path, **settings)


# ---- scripts --------------------------------------------------------------------------------------------------------


def script(name, check, *options):
    """A decorator: of a function of the arguments it makes main(argv=None), which calls check(args), and then it. name:
    the __name__ of its file. The help is the docstring of this file. If it is the one that the user started, main runs
    at once, and a mistake becomes one line. SIZE in the folder to write stands for --size."""
    def command(function):
        def main(argv=None):
            p = Parser(description=sys.modules[name].__doc__, formatter_class=Help)
            p.add_argument('--overwrite', '--overwrite=true', action='store_true', help='replace what is there')
            for flag, settings in options:
                p.add_argument(flag, **settings)
            args = p.parse_args(argv)
            if 'size' in args and args.out == p.get_default('out'):
                args.out = args.out.replace('SIZE', str(args.size).lower())
            check(args)
            function(args)
        if name == '__main__':
            with one_line_errors():
                main()
        return main
    return command


def dataset(name, out, *options, ends=('',)):
    """The script of a dataset. out: the default of the folder --out, or None if the user must name it. ends: of the
    folders that are claimed, whose names begin so."""
    folder = option('--out', 'folder to write', default=out, required=out is None)
    once = option('--once', 'do nothing if it is prepared; wait if it is being written', action='store_true')
    return script(name, lambda args: claim(args, *(args.out + end for end in ends)), folder, once, *options)


def claim(args, *folders):
    """Raises Mistake, before any work is done, if a folder is not free; from then on other processes wait. With --once,
    the program ends if the datasets are there."""
    for folder in folders:
        hold(folder)
    if args.once and all(Path(folder, 'meta.json').exists() for folder in folders):
        print(f'{" and ".join(folders)} is there')
        sys.exit()
    for folder in map(Path, folders):
        if (folder / 'meta.json').exists():
            if not args.overwrite:
                raise Mistake(f'{folder} exists; give another --out, or --overwrite to replace it')
        elif folder.is_file() or any(folder.glob('*')):
            raise Mistake(f'{folder} exists and is no prepared dataset; give another --out')


# ---- downloads -------------------------------------------------------------------------------------------------------


def differs(path, checksum):
    """'' if the file has this checksum (an MD5 of 32 hex digits, or a sha256 of 64), else a reason."""
    kind = 'md5' if len(checksum) == 32 else 'sha256'
    return '' if digest(path, kind) == checksum else f'its {kind} is not {checksum}'


def fetch(url, path, checksum=None, tries=5):
    """Download url to path and return path. If an earlier attempt left path.part, it is continued.

    checksum: MD5 or sha256 in hex, compared before the file gets its name; without one, that which Hugging Face sends
    for its large files. Raises Mistake if the network or the server fails `tries` times in a row, the checksum differs,
    or, without one, a web page comes, such as that of a login.
    """
    import requests
    part, tag = path.with_name(f'{path.name}.part'), path.with_name(f'{path.name}.etag')
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f'downloading {url}')
    failures = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            published = receive(requests, url, part, tag, have)
            break
        except requests.RequestException as e:
            failures = 1 if part.exists() and part.stat().st_size > have else failures + 1
            if failures >= tries:
                raise Mistake(f'{url} failed {tries} times ({type(e).__name__}: {str(e)[:200]}); run this again to '
                              'continue, or pass a copy to --from') from None
            time.sleep(min(2 ** failures, 30) * 0.1)
    tag.unlink(missing_ok=True)
    checksum = checksum or published
    with open(part, 'rb') as f:
        page = f.read(99).lstrip().startswith(b'<')  # no dataset and no weights begin so
    wrong = differs(part, checksum) if checksum else 'it is a web page, perhaps that of a login' * page
    if wrong:
        part.unlink()
        raise Mistake(f'{url} arrived damaged ({wrong}); run this again to download it anew, or pass a copy to --from')
    os.replace(part, path)
    return path


def receive(requests, url, part, tag, have):
    """Ask a server once: for what follows the `have` bytes of the part, if it still has the same file (If-Range), else
    for all. Returns the sha256 that it publishes, or None."""
    headers = {'Accept-Encoding': 'identity'} | ({'Range': f'bytes={have}-'} if have else {})
    if have and tag.exists():
        headers['If-Range'] = tag.read_text(encoding='latin1')
    with requests.get(url, stream=True, timeout=PATIENCE, headers=headers) as r:
        said = [answer.headers.get('X-Linked-ETag', '').strip('"') for answer in (*r.history, r)]
        published = next((checksum for checksum in said if len(checksum) == 64), None)
        place = r.headers.get('Content-Range', '')
        resumed = r.status_code == 206 and place.startswith(f'bytes {have}-')
        if r.status_code in (206, 416) and not resumed:
            part.unlink(missing_ok=True)
            raise requests.ConnectionError('the server goes on at another place; starting again')
        r.raise_for_status()
        if not resumed:
            tag.unlink(missing_ok=True)
            if (etag := r.headers.get('ETag', '')).startswith('"'):  # a weak one means nothing for If-Range
                tag.write_text(etag, encoding='latin1')
        start, left = have * resumed, r.raw.length_remaining  # None if the server does not say
        with open(part, 'ab' if resumed else 'wb') as f, \
                tqdm(total=left and start + left, initial=start, unit='B', unit_scale=True, desc=part.stem) as bar:
            for chunk in r.iter_content(1 << 16):
                f.write(chunk)
                bar.update(len(chunk))
    return published


def local_or_fetch(args, url, checksum=None, name=''):
    """The path of the user's own copy if given (--from: a file, or a folder that has a file with the url's name), else
    of the download, which is kept for the next time in `downloads` beside --out, under this name. Raises Mistake for a
    file with another checksum."""
    path = Path(args.out).parent / 'downloads' / (name or Path(url).name)
    if args.source is not None:
        path = Path(args.source)
        path = path / Path(url).name if path.is_dir() else path
        if not path.is_file():
            raise Mistake(f'--from {path}: no such file; name the one you have')
    else:
        hold(path)  # two datasets may need the same file
        if not path.exists():
            return fetch(url, path, checksum)
    if checksum and (difference := differs(path, checksum)):
        raise Mistake(f'{path} is not the published file ({difference}); remove it, and get it again')
    return path


# ---- archives --------------------------------------------------------------------------------------------------------


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
