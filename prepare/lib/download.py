"""Downloads that resume, show their progress, and check their checksum.

A file gets its name only when it is complete."""
import os
import time
from pathlib import Path

from engine.settings import Mistake
from prepare.lib.files import hold
from tasks.files import digests

PATIENCE = 30  # seconds to wait for a server that sends nothing


def differs(path, checksum):
    """'' if the file has this checksum (an MD5 of 32 hex digits, or a sha256 of 64), else a
    reason."""
    kind = 'md5' if len(checksum) == 32 else 'sha256'
    found, = digests([Path(path)], f'checksum of {path}', kind).values()
    return '' if found == checksum else f'its {kind} is not {checksum}'


def fetch(url, path, checksum=None, tries=5):
    """Download url to path and return path. If an earlier attempt left path.part, it is continued.

    checksum: MD5 or sha256 in hex, compared before the file gets its name. Raises Mistake if the
    server refuses, the network fails `tries` times in a row, or the checksum differs.
    """
    import requests
    from tqdm import tqdm
    path = Path(path)
    part = path.with_name(path.name + '.part')
    print(f'downloading {url}')
    failures = have = 0
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            have = part.stat().st_size if part.exists() else 0
            headers = {'Accept-Encoding': 'identity'} | ({'Range': f'bytes={have}-'} if have else {})
            with requests.get(url, stream=True, timeout=PATIENCE, headers=headers) as r:
                if r.status_code == 416 and have:  # the part is complete, or too long
                    if r.headers.get('Content-Range', '').rpartition('/')[2] == str(have):
                        break
                    part.unlink()
                    raise requests.ConnectionError('the partial file was too long; starting again')
                if 400 <= r.status_code < 500 and r.status_code not in (408, 429):
                    raise Mistake(f'{url}: the server answered {r.status_code}; download the file in another way '
                                  'and pass --from PATH')
                r.raise_for_status()
                resumed = r.status_code == 206
                if resumed and not r.headers.get('Content-Range', '').startswith(f'bytes {have}-'):
                    part.unlink()
                    raise requests.ConnectionError('the server went on at another place; starting again')
                size = r.headers.get('Content-Length', '')
                total = int(size) + have * resumed if size.isdecimal() else None
                with open(part, 'ab' if resumed else 'wb') as f, \
                        tqdm(total=total, initial=have * resumed, unit='B', unit_scale=True, desc=path.name) as bar:
                    for chunk in r.iter_content(1 << 16):
                        f.write(chunk)
                        bar.update(len(chunk))
                    if total is not None and f.tell() < total:
                        raise requests.ConnectionError(f'connection closed at {f.tell()} of {total} bytes')
                break
        except requests.RequestException as e:
            grown = part.exists() and part.stat().st_size > have
            failures = 1 if grown else failures + 1
            if failures >= tries:
                raise Mistake(f'{url} failed {tries} times ({type(e).__name__}); run this again to continue, '
                              'or download the file in another way and pass --from PATH') from None
            time.sleep(min(2 ** failures, 30) * 0.1)
        except OSError as e:
            raise Mistake(f'{part} cannot be written ({e.strerror}); make room, or run this where there is some, to '
                          'continue') from None
    if checksum and (difference := differs(part, checksum)):
        part.unlink()
        raise Mistake(f'{url} arrived damaged ({difference}); run this again to download it anew')
    os.replace(part, path)
    return path


def local_or_fetch(given, url, path, checksum=None, strict=True):
    """The path of the user's own copy if given (--from: a file, or a folder that has a file with
    the url's name), else of the download, which is kept for the next time. strict: refuse a copy
    with another checksum instead of printing a note."""
    if given is None:
        if not os.path.exists(path):
            hold(path)  # two datasets may need the same file
            if not os.path.exists(path):
                fetch(url, path, checksum)
        return path
    given = Path(given)
    if given.is_dir():
        given = given / url.rpartition('/')[2]
    if not given.is_file():
        raise Mistake(f'--from {given}: no such file; name the one you have')
    difference = checksum and differs(given, checksum)
    if difference and strict:
        raise Mistake(f'--from {given}: not the expected file ({difference}); get it again')
    if difference:
        print(f'note: {given} is not the official file ({difference}); only its content is checked')
    return given
