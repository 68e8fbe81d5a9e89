"""Files that appear whole or not at all, checks before the work that they can be written, and paths
as one types them."""
import contextlib
import datetime
import errno
import os
import shlex
import subprocess
from pathlib import Path

from engine.settings import Mistake


def lasting(seconds):
    """Seconds as hours, minutes and seconds: 0:01:35."""
    return str(datetime.timedelta(seconds=round(seconds)))


def quoted(path):
    """A path as one types it in the shell of this system."""
    return subprocess.list2cmdline([path]) if os.name == 'nt' else shlex.quote(path)


def write_file(path, write, mode='w', advice='go on with --init_from=resume, or name another --out_dir'):
    """Call write(file) on a new file, then rename it to path: a crash or a full disk leaves the old
    file whole. Raises Mistake with the advice if it cannot be written."""
    new = f'{path}.new'
    as_text = {} if 'b' in mode else {'encoding': 'utf-8', 'errors': 'backslashreplace', 'newline': '\n'}
    try:
        with open(new, mode, **as_text) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as e:
        with contextlib.suppress(OSError):
            os.remove(new)
        full = getattr(e, 'errno', None) not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS)
        raise Mistake(f'could not write {path} ({e}); what was there before is untouched: '
                      f'{"make room, then " * full}{advice}') from None


def bar(items, *words, **settings):
    """items, with tqdm's bar on a terminal if tqdm is installed; training can do without. Of several
    processes the first shows one."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, *words, **{'disable': os.environ.get('RANK', '0') != '0' or None} | settings)


def check_writable(path, advice):
    """Raises Mistake, before any work, if `write_file` could not write path."""
    try:
        open(f'{path}.new', 'wb').close()
        os.remove(f'{path}.new')
    except OSError as e:
        raise Mistake(f'{path} cannot be written ({e.strerror}); {advice}') from None


def check_folder(out, name, setting):
    """Raises Mistake, before any work, if the folder out, which need not exist, cannot hold a file
    of this name. setting: the option that gives the folder, such as --out."""
    try:
        os.lstat(Path(out) / name)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise Mistake(f'{out} cannot be written ({e.strerror}); name another {setting}') from None


def check_picture_path(path, endings, setting):
    """Raises Mistake, before any work, if path has none of these endings (such as .png) or its
    folder does not exist. setting: the option that gives the path, such as --out."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise Mistake(f'{path} cannot be written: its ending is no format of pictures; give another {setting}, '
                      f'such as {setting}=sheet.png')
    if path.is_dir() or not path.parent.is_dir():
        raise Mistake(f'{path} cannot be written: {"it" if path.is_dir() else path.parent} is '
                      f'{"a" if path.is_dir() else "no"} folder; give another {setting}')


def check_new(path, overwrite, setting):
    """Raises Mistake if path exists and must not be replaced."""
    if Path(path).exists() and not overwrite:
        raise Mistake(f'{path} exists; give another {setting}, or --overwrite=true to replace it')
