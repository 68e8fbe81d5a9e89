"""What all scripts in prepare/ begin with: the words of a command line, files that are downloaded
or the user's own, and archives.

A script has a function main(argv=None), which first of all calls `arguments`, and it ends with

    if __name__ == '__main__':
        run(main)

A download resumes, shows its progress, and is compared with its checksum if there is one. A file
gets its name only when it is complete. Files inside archives are read one after the other, and
nothing is unpacked to disk. Strangers made the archives: a few bytes may claim, or unpack to, more
than any memory holds, so a file above a fixed size is refused.
"""
import argparse
import gzip
import hashlib
import os
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from engine.mistakes import Mistake, one_line_errors, reading
from lib.files import check_replaceable, hold
from tasks.checksums import digest

PATIENCE = 30           # seconds to wait for a server that sends nothing
# the most bytes of a file that is read: the largest, of CIFAR-100, has 155 MB
MOST_BYTES = 2 ** 28
LARGEST = 2 ** 36       # the same of a file that is passed over: tarfile reads on behind the end


# ---- options ------------------------------------------------------------------------------------
# each is a pair: a name, and the keywords with which argparse's add_argument is called

def option(name, help, **settings):
    return name, settings | {'help': help}


def choice(name, help, *values):
    """One of the values, all numbers or all in lower case, by default the first."""
    kind = int if isinstance(values[0], int) else str.lower
    return option(name, help, type=kind, choices=values, default=values[0])


def number(name, help, default, low, high):
    """A number from low to high, of the type of its default."""
    kind = type(default)

    def in_range(text):
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f'{text} must be between {low} and {high}')
        return value

    in_range.__name__ = 'number'  # argparse says "invalid number value", with this name
    return option(name, help, type=in_range, default=default)


def local(what, **settings):
    """--from, which becomes args.source: the user's own copy. what: its line in --help."""
    return option('--from', what, dest='source', metavar='PATH', type=Path, **settings)


# ---- scripts ------------------------------------------------------------------------------------

class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The script's docstring as it is written, and each option with its default."""


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors become a Mistake."""

    def error(self, message):
        raise Mistake(f'{message}; --help lists all options')


def arguments(doc, argv, *options, out=None, ends=('',)):
    """The command line of a script that writes a dataset, as a namespace. From now on the folder
    args.out is claimed, see `claim`.

    doc: the docstring of the script, which --help shows. argv: the words, or None for those that
    the user typed. out: the default of --out, or None if the user must type it. ends: for a script
    that writes several folders, the suffix of each behind --out.
    """
    folder = option('--out', 'folder to write', default=out, required=out is None)
    once = option('--once', 'do nothing if it is prepared; wait if it is being written',
                  action='store_true')
    args = parse(doc, argv, folder, once, *options)
    claim(args, *[args.out + end for end in ends])
    return args


def parse(doc, argv, *options):
    """The command line as a namespace: the values of the options, one of which is --out, and
    `overwrite`; and its `words`. The value of --size takes the place of the word SIZE in --out.
    Raises Mistake for words that do not fit the options."""
    words = sys.argv[1:] if argv is None else argv
    # a shell leaves the ~ of --out=~/data, because it does not begin a word
    words = [word.replace('=~/', f'={Path.home()}/') for word in words]
    parser = Parser(description=doc, formatter_class=Help)
    # the second spelling is train.py's: argparse compares a whole word with names first
    parser.add_argument('--overwrite', '--overwrite=true', action='store_true',
                        help='replace what is there')
    for name, settings in options:
        parser.add_argument(name, **settings)
    args = parser.parse_args(words)
    args.words = words
    if 'size' in args:
        args.out = args.out.replace('SIZE', str(args.size))
    return args


def claim(args, *folders):
    """Let no other process write these folders before this one has ended; if one is being written,
    wait. Raises Mistake, before any work is done, if a folder may not be written. With --once, the
    program ends if all datasets are there; if only some of them are, that is a Mistake too."""
    for folder in folders:
        hold(folder)
    prepared = [folder for folder in folders if Path(folder, 'meta.json').exists()]
    if args.once and prepared == list(folders):
        print(f'{" and ".join(folders)} is there')
        sys.exit()

    for folder in folders:
        path = Path(folder)
        if folder in prepared:
            if not args.overwrite:
                raise Mistake(f'{path} exists; give another --out, or --overwrite to replace it')
            check_replaceable(path)
            for word in args.words:
                source = Path(word.rpartition('=')[2])  # of --images=FILE the file
                if os.path.exists(source) and path.resolve() in source.resolve().parents:
                    raise Mistake(f'{source} would be replaced too; move it to another folder')
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Mistake(f'{path} exists and is no prepared dataset; give another --out')


def run(main):
    """A script as a user starts it: a mistake becomes one line and exit code 2."""
    with one_line_errors():
        main()


# ---- downloads ----------------------------------------------------------------------------------

def local_or_fetch(args, url, checksum=None, name=''):
    """The path of a file: of the user's own copy if there is --from, and else of the download.

    --from is the file, or a folder that has a file with the url's name. A download is kept for the
    next time in the folder `downloads` beside --out, under `name`, by default the url's. Raises
    Mistake if the user's file is not there, and if a file, also of an earlier download, has another
    checksum (MD5 or sha256 in hex).
    """
    if args.source is None:
        path = Path(args.out).parent / 'downloads' / (name or Path(url).name)
        hold(path)  # two datasets may need the same file
        if not path.exists():
            return fetch(url, path, checksum)
    else:
        path = Path(args.source)
        if path.is_dir():
            path = path / Path(url).name
        if not path.is_file():
            raise Mistake(f'--from {path}: no such file; name the one you have')

    if checksum and not has_checksum(path, checksum):
        raise Mistake(f'{path} is not the published file, whose checksum is {checksum}; remove it, '
                      'and get it again')
    return path


def has_checksum(path, checksum):
    """Whether a file has this checksum, an MD5 of 32 hex digits or a sha256 of 64."""
    kind = 'md5' if len(checksum) == 32 else 'sha256'
    return digest(path, kind) == checksum


def fetch(url, path, checksum=None, tries=5):
    """Download url to path and return path. If an earlier attempt left path.part, it is continued.

    checksum: MD5 or sha256 in hex, compared before the file gets its name. Without one, that is
    used which Hugging Face sends for its large files. Raises Mistake for a file that has another
    checksum, and if the network or the server fails `tries` times in a row.
    """
    import requests
    part = path.with_name(f'{path.name}.part')
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f'downloading {url}')

    failures = 0
    while True:
        size_before = size_of(part)
        try:
            published = receive(url, part, size_before)
            break
        except requests.RequestException as e:
            # after an attempt that brought something, failures are counted anew
            failures = 1 if size_of(part) > size_before else failures + 1
            if failures >= tries:
                raise Mistake(f'{url} failed {tries} times ({type(e).__name__}: {str(e)[:200]}); '
                              'run this again to continue, or pass a copy to --from') from None
            time.sleep(0.1 * min(2 ** failures, 30))

    expected = checksum or published
    if expected and not has_checksum(part, expected):
        part.unlink()
        raise Mistake(f'{url} arrived damaged, its checksum is not {expected}; run this again to '
                      'download it anew, or pass a copy to --from')
    os.replace(part, path)
    return path


def size_of(path):
    """The bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def receive(url, part, size_before):
    """Ask a server once for a file, and write its bytes to the file `part`.

    part has `size_before` bytes of an earlier attempt. The server is asked for those that follow.
    Returns the sha256 that the server publishes, or None. Raises what requests raises.
    """
    import requests
    headers = {'Accept-Encoding': 'identity'}  # the file itself, so that its bytes can be counted
    if size_before:
        headers['Range'] = f'bytes={size_before}-'

    with requests.get(url, stream=True, timeout=PATIENCE, headers=headers) as response:
        content_range = response.headers.get('Content-Range', '')
        if content_range == f'bytes */{size_before}':  # an earlier attempt has brought all bytes
            return published_checksum(response)
        start = 0
        if response.status_code in (206, 416):  # 416: there are no such bytes
            start = size_before
            if not content_range.startswith(f'bytes {start}-'):
                part.unlink(missing_ok=True)
                raise requests.ConnectionError('the server goes on elsewhere; starting again')
        response.raise_for_status()
        write_content(response, part, start)
        return published_checksum(response)


def write_content(response, part, start):
    """Write what a server sends to the file `part`, with a bar of the bytes that are missing.
    start: how many bytes it has already; 0 writes it anew."""
    remaining = response.raw.length_remaining  # None if the server does not say it
    with open(part, 'ab' if start else 'wb') as f:
        with tqdm(total=remaining, unit='B', unit_scale=True, desc=part.stem) as bar:
            for chunk in response.iter_content(2 ** 16):
                f.write(chunk)
                bar.update(len(chunk))


def published_checksum(response):
    """The sha256 that Hugging Face sends, in its answer or in a redirect to it, or None."""
    for answer in (*response.history, response):
        checksum = answer.headers.get('X-Linked-ETag', '').strip('"')
        if len(checksum) == 64:
            return checksum
    return None


# ---- names --------------------------------------------------------------------------------------

def first_path(folders, *names):
    """The path of the first of these names that is in one of the folders, or None."""
    for name in names:
        for folder in folders:
            path = Path(folder, name)
            if path.exists():
                return path
    return None


def hash_of_name(name):
    """By which files are chosen to be held out: the choice depends on their names alone."""
    return hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()


# ---- archives -----------------------------------------------------------------------------------

def tar_files(path, wanted, opened=None):
    """Yield (name, bytes) of each file in a tar archive for which wanted(name) is true, in order.

    The archive may be compressed by gzip. An archive NAME.tar inside it is opened too: `wanted`
    gets the name that a file has inside NAME.tar, and what is yielded is NAME/ and that name.
    opened: the open archive, if it is inside another one; path is then what messages call it.
    Raises Mistake for a damaged archive, but not for one that is cut between two of its files; and
    for a file that is sparse or too large: MOST_BYTES if it is wanted, else LARGEST.
    """
    with reading(f'{path} is damaged, cut off or no tar archive', 'remove it, and get it again'):
        if opened is None:
            opened = open(path, 'rb')
            is_compressed = opened.read(2) == b'\x1f\x8b'  # with which gzip's files begin
            opened.seek(0)
            if is_compressed:
                opened.close()
                opened = gzip.open(path, 'rb')
        with opened, tarfile.open(path, 'r|', opened, 2 ** 20) as tar:  # a MB at once
            for member in iter(tar.next, None):  # a loop over tar would need the list of members
                tar.members.clear()  # tarfile would keep every one, and there may be millions
                name = PurePosixPath(member.name)
                is_wanted = wanted(member.name)
                most = MOST_BYTES if is_wanted else LARGEST
                if member.issparse() or member.size > most:
                    raise tarfile.ReadError(f'{name} is sparse or has {member.size:,} bytes')
                if not member.isfile():
                    continue
                if is_wanted:
                    yield member.name, tar.extractfile(member).read()
                elif member.size > 0 and name.suffix == '.tar':
                    archive = tar.extractfile(member)
                    for inner, content in tar_files(f'{path}: {name}', wanted, archive):
                        yield f'{name.stem}/{inner}', content


def tar_named(path, wanted):
    """Yield (name without its folders, bytes) of the files in a tar archive for which wanted(this
    name) is true."""
    for name, content in tar_files(path, lambda name: wanted(PurePosixPath(name).name)):
        yield PurePosixPath(name).name, content
