"""Downloads that resume, show their progress, and check their checksum. A file gets its name only when it is
complete."""
import os
import time
from pathlib import Path

from tqdm import tqdm

from engine.settings import Mistake
from lib.files import hold
from tasks.files import digests

PATIENCE = 30  # seconds to wait for a server that sends nothing


def differs(path, checksum):
    """'' if the file has this checksum (an MD5 of 32 hex digits, or a sha256 of 64), else a reason."""
    kind = 'md5' if len(checksum) == 32 else 'sha256'
    found, = digests([Path(path)], f'checksum of {path}', kind).values()
    return '' if found == checksum else f'its {kind} is not {checksum}'


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
    path = Path(args.out).parent / 'downloads' / (name or url.rpartition('/')[2])
    if args.source is not None:
        path = Path(args.source, url.rpartition('/')[2]) if os.path.isdir(args.source) else Path(args.source)
        if not path.is_file():
            raise Mistake(f'--from {path}: no such file; name the one you have')
    else:
        hold(path)  # two datasets may need the same file
        if not path.exists():
            return fetch(url, path, checksum)
    if checksum and (difference := differs(path, checksum)):
        raise Mistake(f'{path} is not the published file ({difference}); remove it, and get it again')
    return path
