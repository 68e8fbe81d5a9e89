"""Command lines: each works, or ends with one line and exit code 2 and leaves nothing behind. First those that work,
then mistakes that people make, then every option of every program with every odd value, and odd words, at random.

    NANOCRATE_FAULTS=30 python -m pytest tests/test_command_lines.py -s     # 30 times as many, and a count
"""
import contextlib
import importlib
import io
import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from dataclasses import fields

import pytest
import torch
from helpers import JPEGS, OF_CRATE_MAE, OF_DINO, ROOT, masked_autoencoder, run, save_run, text_network
from safetensors.torch import save_file
from small_benchmarks import PTB, WIKI, zipped
from small_files import tree as write_tree
from test_folders import ARCHIVES
from test_scripts import WORK
from test_small_pictures import archive, files_of
from test_weights import ALPHA, LM, gpt2_tensors, released

import analyze
import bench
import eval
import sample
import train
from analysis.curves import CurvesConfig
from engine import settings
from lib import download
from lib.benchmarks import save_text
from model_aot import AoTConfig
from model_crate import CRATE, CRATEConfig
from tasks.augment import AugmentConfig

CASES = 100 * int(os.environ.get('NANOCRATE_FAULTS', 1))
VALUES = ['nan', 'inf', '-inf', '-1', '0', '1e-300', '1e400', '1000000000000', '-1000000000000', '1.5', 'true', 'None',
          '', ' ', 'a,b', '1,2,3', '[', '{}', '()', '1_000', '0x10', '٣', '*', 'out/*', '[a-z]*', '~', '/', '.', '..',
          'FILE:', 'x.pt', 'text/last.pt', 'file', 'file/x', 'folder', 'no/such/place', 'a\nb', 'a\x1b[2Jb', '--',
          '-h', '--help=1', '%s', '$HOME', '__init__', 'con', 'sys', '1e9', '-0', '+1', '1e3', '3']
WORDS = ['--', '-', '---', '-x', '--=', '--=1', '=', '--nothing', '--nothing=1', 'nothing.py', 'config', 'file',
         'folder', '', '*', 'config/*.py', 'x' * 300, '--out_dir', '--help=', '-o', '@file', 'broken.py', 'binary.py']
BYTES, CLASSES = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}, {'kind': 'images', 'classes': list('abcd')}

TRAIN, DATA = (train.TrainConfig, AugmentConfig), '--data_dir=inputs/data '
SMALL = DATA + '--n_layer=1 --n_head=2 --n_embd=8 --block_size=8 --batch_size=2 --max_iters=1 --eval_iters=1 ' \
    '--warmup_iters=1 --out_dir=new '
PICTURES = DATA + '--dataset=quads --out_dir=new'
QUICK = '--n_layer=1 --n_embd=16 --n_head=2 --batch_size=2 --rounds=1 --seconds=0.01 --tokens=2'
PROGRAMS = {  # (main, words that work, the classes of its settings)
    'train': (train.main, SMALL + '--dataset=text', (*TRAIN, AoTConfig)),
    'train pictures': (train.main, SMALL + '--dataset=quads --model=crate --patch_size=4', (*TRAIN, CRATEConfig)),
    'train masked': (train.main, ' '.join([PICTURES, *OF_CRATE_MAE, '--max_iters=1']), TRAIN),
    'train views': (train.main, ' '.join([PICTURES, *OF_DINO, '--max_iters=1']), TRAIN),
    'train functions': (train.main, SMALL + '--dataset=linear --n_dims=4 --block_size=12', (*TRAIN, AoTConfig)),
    'train from': (train.main, DATA + '--init_from=picture --out_dir=new --max_iters=1', TRAIN),
    'train resumed': (train.main, DATA + '--init_from=resume --out_dir=trained', TRAIN),
    'sample': (sample.main, '--ckpt=text --max_new_tokens=2', [sample.SampleConfig]),
    'sample gaps': (sample.main, '--ckpt=gaps --start=a[MASK]', [sample.SampleConfig]),
    'sample pictures': (sample.main, '--ckpt=picture --image=folder', [sample.SampleConfig]),
    'sample masked': (sample.main, '--ckpt=masked --image=folder --out=new.png', [sample.SampleConfig]),
    'eval': (eval.main, DATA + '--ckpt=text/best.safetensors', [eval.EvalConfig]),
    'eval pictures': (eval.main, DATA + '--ckpt=picture --workers=0', [eval.EvalConfig]),
    'eval masked': (eval.main, DATA + '--ckpt=masked --workers=0', [eval.EvalConfig]),
    'eval functions': (eval.main, '--ckpt=functions --prompts=4 --results=new.csv', [eval.EvalConfig]),
    'eval benchmarks': (eval.main, DATA + '--ckpt=text --benchmarks=ptb --results=new.csv', [eval.EvalConfig]),
    'analyze layers': (analyze.main, f'layers {DATA} --ckpt=picture --num_samples=2', [analyze.AnalyzeConfig]),
    'analyze attention': (analyze.main, f'attention {DATA} --ckpt=picture --num_samples=1', [analyze.AnalyzeConfig]),
    'analyze curves': (analyze.main, 'curves run', [CurvesConfig]),
    'bench': (bench.main, f'step --rows=aot-stdlib-plain {QUICK}', [bench.BenchConfig]),
    'bench generate': (bench.main, f'generate --rows=aot-stdlib-plain {QUICK}', [bench.BenchConfig])}
PREPARE = {path.stem: f'--from inputs/{path.stem}' for path in (ROOT / 'prepare').glob('[a-z]*.py')} | {
    script: words.replace('{}', f'inputs/{script}/') for script, (words, _) in WORK.items()} | {
    'official_weights': 'inputs/crate.pth --model crate --n_head 2 --patch_size 4',
    'crate_alpha_weights': '--from inputs/alpha.pth', 'crate_lm_weights': '--from inputs/lm.pt',
    'gpt2_weights': '--from inputs/gpt2.safetensors --n_head 1',
    **dict.fromkeys(('shakespeare', 'shakespeare_char'), '--from file'), 'shapes_many': '--train 3 --val 3 --test 3'}
POOLED = 'flowers102', 'pets'  # may start processes
NAMES = [*PROGRAMS, *(f'prepare/{name}' for name in sorted(PREPARE))]

REFUSED = {  # words, joined by + where it takes several; the line names the last's setting or value, or what is in ()
    'train': '--n_embd=15 --n_layers=3 --dataset=nothing_here --dataset=shakespeare_char --model=gpt --optimizer=sgd '
             '--schedule=cos --dtype=int8 --compile=maybe --device=tpu9 --device=meta --block_size=100000 --seed=-1 '
             '--vocab_size=17 --init_from=no_such --init_from=resume(new) --log_interval=0 --learning_rate=0 '
             '--min_lr=1 --learning_rate=nan --grad_clip=-1 --beta2=1 --n_head=0 --n_embd=1000000000(--batch_size) '
             '--train_share=0.5 --wandb_log=true(wandb) --tensorboard=true(tensorboard) --curriculum=9 '
             '--dataset=quads+--init_from=text --init_from=text+--new_head=true --randaugment_n=2 --dataset=ptb '
             '--fsdp=true --out_dir=file --out_dir=file/below --out_dir=run '
             '--image_size=16(images) --n_dims=4(functions)',
    'train pictures': '--patch_size=3 --num_classes=3 --num_classes=5 --epochs=-1 --ema=1 --workers=-2 --crop_scale=0 '
                      '--crop_scale=2 --crop_scale=nan --eval_crop=-1 --eval_crop=1.1 --eval_view=whole '
                      '--image_size=8,8,8 --randaugment_n=-1 --randaugment_n=11 --randaugment_m=31 '
                      '--randaugment_scale=pil --pool=max --channels=1 --train_share=0 --train_share=1.5 '
                      '--new_head=true --init_from=picture+--dataset=text '
                      '--init_from=picture+--model=vit --local_crops=3 --dataset=nothing --dataset=cifar10 --cpu=1',
    'train functions': '--image_size=32(images) --n_dims=0(functions) --curriculum=-1 --train_share=0.5 --epochs=2 '
                       '--dataset=sparse_linear+--sparsity=9 --dataset=sparse_linear+--sparsity=0',
    'train from': '--init_from=none.safetensors(trained) --init_from=/(run) --init_from=inputs --init_from=none '
                  '--init_from=trained/last.pt --init_from=text/none.safetensors --init_from=trained+--gelu=tanh '
                  '--init_from=old(0b5df1f) --init_from=theirs(--dataset) --init_from=theirs+--dataset=colours '
                  '--dataset=colours(--new_head) --dataset=renamed(--new_head) --image_size=10(patch_size) '
                  '--dataset=grey(channels) --init_from=masked+--new_head=true '
                  '--init_from=masked+--model=vit(--model=crate) --init_from=masked+--model=vit_mae(--model=crate) '
                  '--init_from=masked+--model=aot(--model=crate) --init_from=masked+--model=crate+--n_head=4 '
                  '--init_from=masked+--model=crate+--patch_norm=true --init_from=vit_mae+--model=crate(--model=vit) '
                  '--init_from=scratch+--dataset=text+--model=vit --init_from=scratch+--dataset=linear+--model=crate '
                  '--init_from=scratch+--dataset=text+--model=crate+--causal=false+--vocab_size=256(257) '
                  '--init_from=scratch+--dataset=grey+--model=aot+--image_size=0(images)',
    'train resumed': '--seed=5 --train_share=0.5 --sparsity=2 --n_embd=32 --block_size=8 --optimizer=lion '
                     '--max_iters=2 --dataset=text --new_head=true --out_dir=theirs(--init_from) '
                     '--out_dir=old(0b5df1f) --out_dir=damaged(--init_from=damaged)',
    'train masked': '--mask_ratio=1 --mask_ratio=0 --mask_ratio=0.99 --mask_ratio=abc --num_classes=4 --train_share=0 '
                    '--new_head=true --dataset=text(crate_mae)',
    'train views': '--local_size=6 --local_size=-4 --dataset=text --backbone=nothing --local_crops=-1 --ema=0.9 '
                   '--telemetry=true --randaugment_n=2 --local_scale=0.5 --image_size=10 --objective=what '
                   '--objective=simdino+--eps=0 --objective=simdino+--c=-1',
    'sample': '--start=FILE:nowhere.txt --start=FILE:binary.py --stop=more --ckpt=nowhere --temperature=-1 '
              '--temperature=nan --top_p=0 --top_k=-1 --image=a.png --num_samples=0 --seed=-1 --max_new_token=3 '
              '--out=x.png --ckpt=functions(eval.py) --ckpt=masked(--image)',
    'sample gaps': '--start=the([MASK]) --start=aaaaaaaaaaaaaaaa[MASK](block_size) --image=folder',
    'sample pictures': '--out=x.what --out=no/x.png --out=there.png --interactive=true --mask_ratio=0.5 --start=a '
                       '--image=nowhere.png --image= --image=file --image=inputs/data/text --ckpt=letters(--image)',
    'sample masked': '--norm_pix_loss=true --mask_ratio=0 --out=there.png --image=nowhere.png',
    'eval': '--probe=true --knn=3 --real=real.json --prompts=3 --stride=4 --dataset=quads --dataset=ptb '
            '--dataset=nothing --ckpt=letters(--dataset) --ckpt=nowhere',
    'eval pictures': '--dataset=renamed --dataset=text --dataset=nothing --split=dev --batch_size=0 --knn=-1 --knn=5,0 '
                     '--eval_crop=2 --split=train+--knn=1 --eval_view=all --workers=-2 --n_embd=32 --dtype=int8 '
                     '--probee=true --train_share=0 --stride=4 --beside=x --image_size=10 --dataset=grey(channels) '
                     '--real=no_real.json --confusion=c.txt --confusion=there.png --benchmarks=ptb',
    'eval masked': '--real=x.json --confusion=x.png --benchmarks=ptb',
    'eval functions': '--split=val --knn=3 --stride=4 --prompts=1 --dataset=cubic --beside=nowhere --beside=text '
                      '--beside=three --benchmarks=all --results=no/x.csv',
    'eval benchmarks': '--benchmarks=lambda --benchmarks=ptb, --stride=9 --stride=-1 --knn=3 --dataset=text '
                       '--results=file --results=no/r.csv --benchmarks=lambada --data_dir=none --ckpt=gaps(benchmarks)',
    'bench': 'pikturs --rows=crate-huge --rows=crate-tiny-quick --rows=vit-small-released(row) '
             '--rows=crate-tiny-nanogpt(row) --rows=aot-mssa-base-nanogpt(row) '
             '--rows=crate-tiny+--image_size=33 --rounds=0 --batchsize=2',
    'bench generate': '--rows=vit-small',
    'prepare/shapes': '--size=3 --objects=0 --train=0 --train=1000000000000', 'prepare/text': '--val=2 --out=file',
    'prepare/imagefolder': '--val=2 --out=folder --size=0', 'prepare/cifar10': '--from=nowhere',
    'prepare/openwebtext': '--subsets=22 --from=nowhere'}


def inputs_of_prepare(folder):
    """What the scripts of prepare/ read, as it is published, only smaller."""
    for script, (_, files) in WORK.items():
        write_tree(folder / script, files)
    for script, files in ARCHIVES.items():
        write_tree(folder / script.__name__.removeprefix('prepare.'), files)
    write_tree(folder, {'ptb/ptb.test.txt': PTB.encode(), 'wikitext/wikitext-2-v1.zip': zipped({'a/b.test.c': WIKI})})
    write_tree(folder, {f'cifar{n}/cifar-{n}-python.tar.gz': archive(files_of(n)) for n in (10, 100)})
    released(folder / 'alpha.pth', 'crate_alpha', **ALPHA), released(folder / 'lm.pt', 'crate_alpha', **LM)
    save_file(gpt2_tensors(d=2, layers=1, N=8), folder / 'gpt2.safetensors')


@pytest.fixture(scope='module')
def place(tmp_path_factory, pictures_data, bytes_data, text_run):
    """A folder to work in, with small runs, data and files to trip over."""
    place, inputs = tmp_path_factory.mktemp('place'), tmp_path_factory.mktemp('inputs')
    shutil.copytree(pictures_data, inputs / 'data'), shutil.copytree(bytes_data / 'tiny', inputs / 'data' / 'tiny')
    inputs_of_prepare(inputs)
    save_text(inputs / 'data' / 'ptb', PTB * 99, 'ptb.test.txt')
    (place / 'inputs').symlink_to(inputs)  # which no one copies
    small = dict(n_layer=1, n_head=2, n_embd=8, block_size=8)
    letters = {'kind': 'text', 'tokenizer': {'name': 'chars', 'alphabet': 'abc'}}
    save_run(place / 'text', text_network('aot', vocab_size=256, **small), BYTES, dataset='text', seed=1)
    save_run(place / 'letters', text_network('aot', vocab_size=64, **small), letters, dataset='text', seed=1)
    save_run(place / 'gaps', text_network('crate', causal=False, vocab_size=257), BYTES, dataset='text')
    for name, n in (('functions', 4), ('three', 3)):
        save_run(place / name, text_network('aot', n_dims=n, **small), {'kind': 'functions'}, dataset='linear')
    for name, network in (('masked', 'crate_mae'), ('vit_mae', 'vit_mae')):
        save_run(place / name, masked_autoencoder(network, image_size=8, patch_size=2)[0], CLASSES, dataset='quads')
    crate = CRATE(CRATEConfig(n_layer=1, n_head=2, n_embd=8, image_size=8, patch_size=4, num_classes=4))
    save_run(place / 'picture', crate, CLASSES, dataset='quads', seed=1)
    torch.save(crate.to_official(), inputs / 'crate.pth')
    save_run(place / 'theirs', crate, {'kind': 'images', 'classes': None})  # as the authors' weights become one
    for name in ('trained', 'damaged', 'old'):
        shutil.copytree(text_run, place / name)
    (place / 'damaged' / 'last.pt').write_bytes(b'')
    (place / 'old' / 'config.json').write_text('{"model": "aot", "n_layer": 2, "dataset": "tiny"}')
    shutil.copytree(place / 'text', place / 'run')
    row = {'step': 0, 'split': 'val', 'loss': 2.0, 'lr': 0.1, 'seen': 0, 'seconds': 0.0}
    (place / 'run' / 'log.jsonl').write_text(json.dumps(row) + '\n')
    (place / 'file').write_text('a text\n' * 50)
    (place / 'folder').mkdir()
    (place / 'folder' / 'a.jpg').write_bytes(JPEGS['train'][0][2])
    shutil.copy(place / 'folder' / 'a.jpg', place / 'there.png')
    (place / 'broken.py').write_text('n_layer = = 2')
    (place / 'binary.py').write_bytes(bytes(range(256)))
    return place


class GPT2:
    """In the place of GPT-2's tokenizer, which would be downloaded: bytes, and their number of tokens."""
    n_vocab, eot_token = 50257, 50256

    def encode_ordinary(self, text):
        return list(text.encode())


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """here() makes a copy of the place the working directory, from which nothing reaches a network or a keyboard."""
    def no_network(url, *more):
        raise settings.Mistake(f'{url}: no network')
    monkeypatch.setattr(download, 'fetch', no_network)
    monkeypatch.setattr(download, 'differs', lambda path, checksum: '')  # of our small archives
    monkeypatch.setattr('tasks.tokenizer.gpt2_bpe', GPT2)
    monkeypatch.setattr(sys, 'stdin', io.StringIO())
    for name in ('wandb', 'torch.utils.tensorboard'):
        monkeypatch.setitem(sys.modules, name, None)

    def here():
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(tmp_path / 'here', ignore_errors=True)
        shutil.copytree(place, tmp_path / 'here', symlinks=True)
        monkeypatch.chdir(tmp_path / 'here')
        return tmp_path / 'here'
    return here


def program(name):
    """(main, words that work)."""
    if name in PROGRAMS:
        return PROGRAMS[name][0], PROGRAMS[name][1].split()
    stem = name.removeprefix('prepare/')
    main = importlib.import_module(f'prepare.{stem}').main
    out = '--out_dir' if 'weights' in stem else '--out'
    return main, [*PREPARE[stem].split(), out, 'new', *['--workers', '0'] * (stem in POOLED)]


def options(name):
    if name in PROGRAMS:
        lengths = {'seconds', 'rounds', 'max_new_tokens', 'num_samples'}  # what is long is no mistake
        return sorted({f.name for cls in PROGRAMS[name][2] for f in fields(cls)} - lengths)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        program(name)[0](['--help'])
    return sorted({*re.findall(r'--([a-z][\w-]+)', shown.getvalue().rpartition('options:')[2])} - {'help', 'workers'})


def tree(folder):
    """{path: bytes} of all files in a folder but locks, and what the next attempt to prepare a dataset goes on from."""
    files = (p for p in folder.rglob('*') if p.is_file() and p.suffix != '.lock'
             and not (p.parent / 'progress.json').exists())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def outcome(main, words, folder):
    """(what happens: 'works', 'refused', or what went wrong; what is said on standard error)."""
    err, code, files = io.StringIO(), 0, tree(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err), settings.one_line_errors():
            main(list(words))
    except SystemExit as e:
        code = e.code or 0
    except BaseException as e:
        return f'{type(e).__name__}: {str(e)[:300]}', ''
    said = err.getvalue()
    if code == 0:
        return 'works', said
    left = sorted(name for name, _ in tree(folder).items() ^ files.items())
    one = said.startswith('error: ') and said.count('\n') == 1 and len(said) < 1200
    return ('refused' if code == 2 and one and not left else f'exit code {code}, left {left[:5]}, {said[:400]!r}'), said


@pytest.mark.parametrize('name', NAMES)
def test_what_works(name, here):
    """So that what is refused below, is not refused for another reason."""
    folder, (main, words) = here(), program(name)
    assert outcome(main, words, folder)[0] == 'works', outcome(main, words, folder)


@pytest.mark.parametrize('name', REFUSED)
def test_mistakes_are_one_line_that_names_the_setting(name, here):
    folder, (main, words) = here(), program(name)
    for case in REFUSED[name].split():
        more, _, named = case.rstrip(')').partition('(') if case.endswith(')') else (case, '', '')
        setting, _, value = more.split('+')[-1].strip('-').partition('=')
        found, said = outcome(main, [*words, *more.split('+')], folder)
        assert found == 'refused', (case, found)
        assert named in said if named else setting in said or len(value) > 2 and value in said, (case, said)


def test_wrong_command_lines(here):
    """Drawn at random."""
    rng, wrong, count = random.Random(0), [], Counter()
    for _ in range(CASES):
        name = rng.choice(NAMES)
        main, words = program(name)
        if rng.random() < 0.8:
            option, value = rng.choice(options(name)), rng.choice(VALUES)
            words += [f'--{option}', value] if name.startswith('prepare') else [f'--{option}={value}']
        else:
            words[rng.randrange(len(words))] = rng.choice(WORDS + VALUES)
        found, _ = outcome(main, words, here())
        count[found] += 1
        wrong += [(name, [w[:80] for w in words], found)] * (found not in ('works', 'refused'))
    print(f'{CASES} command lines: {dict(count)}')
    assert not wrong, '\n'.join(map(str, wrong))


@pytest.mark.slow
@pytest.mark.parametrize('words', [['train.py', '--model=crate', '--dataset=shapes', '--patch_size=5'],
                                   ['analyze.py', 'curves', 'run', '--top=nan'], ['sample.py', '--ckpt=a\x1b[2Jb'],
                                   ['prepare/shapes.py', '--train', '1' + '0' * 12]])
def test_wrong_command_lines_leave_a_fresh_clone_as_it_was(words, place):
    before = tree(place)
    done = run(*words, cwd=place)
    assert done.returncode == 2 and done.stdout == '', done
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1 and tree(place) == before
