"""The test splits on which language models are scored without training, as folders.

A folder has test.jsonl, one JSON object per line, and meta.json with the length and the sha256 of test.jsonl:
scoring/benchmarks.py refuses a file that differs. The objects are, by task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import hashlib
import json

from engine.settings import Mistake
from lib.files import new_folder, write_meta


def save_benchmark(out, task, rows, source):
    """Writes the folder. rows: dicts as the task needs them; source: the name of the file that they come from."""
    if not rows:
        raise Mistake(f'{source} is empty; get it again')
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': hashlib.sha256(content).hexdigest()}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}})
    print(f'{out}: {len(rows):,} rows')


def save_text(out, text, source):
    """save_benchmark of a text; prints its counts."""
    save_benchmark(out, 'text', [{'text': text}], source)
    print(f'{text.count(chr(10)):,} lines, {len(text.split()):,} words, {len(text.encode()):,} bytes')
