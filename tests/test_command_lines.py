"""Command lines: each works, or ends with one line and exit code 2 and leaves nothing behind. First those that work,
then mistakes that people make."""
import contextlib
import io
import json
import shutil
import sys

import pytest
from helpers import (BYTES, CLASSES, JPEGS, OF_CRATE_MAE, OF_DINO, masked_autoencoder,
                     picture_network, run, save_run, text_network)

import analyze
import bench
import eval
import sample
import train
from engine.mistakes import one_line_errors
from lib.texts import save_benchmark
from prepare import shapes, text

DATA = '--data_dir=inputs/data '
SMALL = DATA + '--n_layer=1 --n_head=2 --n_embd=8 --block_size=8 --batch_size=2 --max_iters=1 --eval_iters=1 ' \
    '--warmup_iters=1 --out_dir=new '
PICTURES = DATA + '--dataset=quads --out_dir=new'
QUICK = '--n_layer=1 --n_embd=16 --n_head=2 --batch_size=2 --rounds=1 --seconds=0.01 --tokens=2'
PROGRAMS = {  # words that work
    'train': (train.main, SMALL + '--dataset=text'),
    'train pictures': (train.main, SMALL + '--dataset=quads --model=crate --patch_size=4'),
    'train masked': (train.main, ' '.join([PICTURES, *OF_CRATE_MAE, '--max_iters=1'])),
    'train views': (train.main, ' '.join([PICTURES, *OF_DINO, '--max_iters=1'])),
    'train functions': (train.main, SMALL + '--dataset=linear --n_dims=4 --block_size=12'),
    'train from': (train.main, DATA + '--init_from=picture --out_dir=new --max_iters=1'),
    'train resumed': (train.main, DATA + '--init_from=resume --out_dir=trained'),
    'sample': (sample.main, '--ckpt=text --max_new_tokens=2'),
    'sample gaps': (sample.main, '--ckpt=gaps --start=a[MASK]'),
    'sample pictures': (sample.main, '--ckpt=picture --image=folder'),
    'sample masked': (sample.main, '--ckpt=masked --image=folder'),  # it replaces reconstruction.png
    'eval': (eval.main, DATA + '--ckpt=text/best.safetensors'),
    'eval pictures': (eval.main, DATA + '--ckpt=picture --workers=0'),
    'eval masked': (eval.main, DATA + '--ckpt=masked --workers=0'),
    'eval functions': (eval.main, '--ckpt=functions --prompts=4 --results=new.csv'),
    'eval benchmarks': (eval.main, DATA + '--ckpt=text --benchmarks=ptb --results=new.csv'),
    'analyze layers': (analyze.main, f'layers {DATA} --ckpt=picture --num_samples=2'),
    'analyze ToST': (analyze.main, f'layers {DATA} --ckpt=tost --num_samples=2 --out=new.png'),
    'analyze attention': (analyze.main, f'attention {DATA} --ckpt=text --start=of --out=new.png'),
    'analyze curves': (analyze.main, 'curves run'),
    'bench': (bench.main, f'step --rows=aot-stdlib-plain {QUICK}'),
    'bench generate': (bench.main, f'generate --rows=aot-stdlib-plain {QUICK}'),
    'prepare shapes': (shapes.main, '--train 3 --val 3 --test 3 --out new'),
    'prepare text': (text.main, 'file --out new')}

# words, joined by + where it takes several; the line names the last's setting or value, or what is in ()
REFUSED = {
    'train': '''
        --n_embd=15 --n_layers=3 --dataset=nothing_here --dataset=shakespeare_char --model=gpt
        --optimizer=sgd
        --max_iters=9223372036854775807 --epochs=1e30 --batch_size=9223372036854775807
        --dtype=int8 --compile=maybe --device=tpu9 --device=meta --seed=-1 --vocab_size=17
        --init_from=no_such
        --init_from=resume(new) --min_lr=1 --learning_rate=nan --n_embd=1000000000(memory)
        --train_share=0.5 --wandb_log=true(wandb) --curriculum=9 --dataset=quads+--init_from=text
        --dataset=torn(meta.json) folder/a.jpg(config)
        --init_from=text+--new_head=true --randaugment_n=2 --dataset=ptb --fsdp=true
        --out_dir=file/below
        --out_dir=run --image_size=16(images) --n_dims=4(functions)
        --n_layer=3.5 --n_layer=many --n_layer=[ --n_layer=true --learning_rate=fast
        --learning_rate=true
        --learning_rate --telemetry=1 --telemetry=yes --qqqqq=3(--help) no_such.py
        --dropout=1.1 --dropout=-0.1 --dropout=1 --seed=4294967296 --seed=18446744073709551616
        --max_iters=100000000000000000000000 --batch_size=100000000000000000000000
        --block_size=100000000000000000000000(memory)
        --block_size=4611686018427387904(memory) --n_embd=4611686018427387904(memory)
        --optimizer=Muonn(muon) --lr=1(learning_rate) --ckpt=out/x(init_from)
        out/mine(--init_from=out/mine)
        --out_dir --out_dir= --dataset= --model= --init_from --init_from=
        --init_from=out/mina(out/mine) --init_from=resume+--out_dir=out/mina(out/mine)
        --init_from=out/mine/last.pt(out/mine) --init_from=gpt2(prepare/gpt2_weights.py)
        --init_from=text+--block_size=32(block_size=8)''',
    'train pictures': '''
        --patch_size=3 --num_classes=5 --ema=1 --crop_scale=nan --eval_view=whole --randaugment_m=31
        --train_share=0 --image_size=8,8,8 --channels=1 --new_head=true --local_crops=3
        --init_from=picture+--dataset=text --init_from=picture+--model=vit --dataset=cifar10
        --eval_view=squash+--eval_crop=0.5 --eval_crop=1e-9 --eval_crop=0 --crop_scale=2
        --dropout=-1 --lam=-1 --ista=mm+--alpha=0
        --label_smoothing=1.5 --label_smoothing=-0.1 --workers=100000
        --workers=100000000000000000000000''',
    'train functions': '''
        --image_size=32(images) --n_dims=0(functions) --epochs=2
        --dataset=sparse_linear+--sparsity=9
        --dataset=sparse_linear+--sparsity=0''',
    'train from': '''
        --init_from=none.safetensors(run) --init_from=/(run) --init_from=inputs
        --init_from=trained/last.pt --init_from=text/none.safetensors
        --init_from=trained+--gelu=tanh
        --init_from=theirs(--dataset) --dataset=colours(--new_head)
        --dataset=renamed(--new_head) --dataset=grey(channels) --init_from=masked+--new_head=true
        --init_from=masked+--model=vit(--model=crate) --init_from=masked+--model=crate+--n_head=4
        --init_from=scratch+--dataset=text+--model=vit(config/train_vit_shapes.py)
        --init_from=scratch+--dataset=linear+--model=crate
        --init_from=scratch+--dataset=text+--model=crate+--causal=false+--vocab_size=256(257)
        --init_from=scratch+--dataset=grey+--model=aot+--image_size=0(images)''',
    'train resumed': '''
        --seed=5 --n_embd=32 --max_iters=2 --new_head=true --out_dir=theirs(last.pt)
        --out_dir=damaged(--init_from=damaged)''',
    'train masked': '''
        --mask_ratio=abc --num_classes=4 --new_head=true
        --dataset=text(config/pretrain_crate_mae_shapes.py)''',
    'train views': '''
        --local_size=6 --dataset=text(config/train_crate_dino_shapes.py) --local_crops=-1 --ema=0.9
        --randaugment_n=2 --image_size=10
        --randaugment_m=3 --blur=0.05 --sparsity=2
        --objective=simdino+--alignment_weight=-1''',
    'sample': '''
        --start=FILE:nowhere.txt --start=FILE:binary.py --ckpt=nowhere --temperature=nan --top_p=0
        --top_k=-1 --image=a.png --num_samples=0 --seed=-1 --max_new_token=3 --out=x.png
        --ckpt=functions(eval.py) --ckpt=masked(--max_new_tokens) --interactive+--start=x
        --seed=4294967296 --seed=18446744073709551616 --seed=100000000000000000000000
        --ckpt --ckpt= --stop out/mine(--ckpt=out/mine)
        --ckpt=out/mina(out/mine) --ckpt=out/mine/last.pt(out/mine)
        --ckpt=out/gpt2-xl(prepare/gpt2_weights.py)''',
    'sample gaps': '--num_samples=3 --start=the([MASK]) --start=aaaaaaaaaaaaaaaa[MASK](block_size) --image=folder',
    'sample pictures': '''
        --out=x.what --out=no/x.png --out=there.png --interactive=true --mask_ratio=0.5 --start=a
        --top_k=3
        --image=nowhere.png --image=file --image=inputs/data/text --ckpt=letters(--image)''',
    'sample masked': '--norm_pix_loss=true --mask_ratio=0 --out=there.png',
    'eval': '''
        --probe=true --knn=3 --real=real.json --prompts=3 --stride=4 --dataset=quads
        --ckpt=letters(--dataset)
        --workers=2 --results
        --ckpt=out/vit_cifar10(config/train_vit_cifar10.py)''',
    'eval pictures': '''
        --dataset=renamed --dataset=text --split=dev --batch_size=0 --knn=5,0 --eval_crop=2
        --workers=-2
        --train_share=0 --split=train+--knn=1 --beside=x --image_size=10 --real=no_real.json
        --confusion=c.txt --confusion=there.png --benchmarks=ptb --knn=1+--layer=9
        --eval_view=squash+--eval_crop=0.5 --eval_crop=1e-9 --train_share=0.5 --layer=1
        --workers=100000000000000000000000 --knn=1+--confusion=c.png --probe=true+--confusion=c.png
        --knn=1+--real=r.json --probe=true+--knn=1+--real=r.json''',
    'eval masked': '--real=x.json --confusion=x.png --benchmarks=ptb',
    'eval functions': '''
        --split=val --knn=3 --dataset=cubic --beside=text --beside=three --results=no/x.csv''',
    'eval benchmarks': '''
        --benchmarks=lambda --benchmarks=ptb, --stride=9 --stride=-1 --knn=3 --dataset=text
        --results=file --results=no/r.csv --benchmarks=lambada --ckpt=gaps(benchmarks)''',
    'analyze layers': '''
        --seed=-1 --seed=18446744073709551616 --heds=1(heads)
        --ckpt=out/tost_stdlib(config/train_tost_stdlib.py)''',
    'analyze attention': '--ckpt=tost(TSSA)',
    'bench': '''
        pikturs --rows=crate-huge --rows=crate-tiny-nanogpt(row) --rows=crate-tiny+--image_size=33
        --rounds=0 --rows=crate-tiny-released+--ista=mm(released)
        --rows=crate-tiny-released+--tie_out=true(released)
        --batch_size=100000000000000000000000(memory)''',
    'bench generate': '--rows=vit-small',
    'prepare shapes': '--size=3 --train=1000000000000',
    'prepare text': '--val=2 --out=file --tokenizer=gpt3(gpt2)'}


@pytest.fixture(scope='module')
def place(tmp_path_factory, pictures_data, bytes_data, text_run):
    """A folder to work in, with small runs, data and files to trip over."""
    place, inputs = tmp_path_factory.mktemp('place'), tmp_path_factory.mktemp('inputs')
    shutil.copytree(pictures_data, inputs / 'data'), shutil.copytree(bytes_data / 'tiny', inputs / 'data' / 'tiny')
    save_benchmark(inputs / 'data' / 'ptb', 'text', [{'text': 'a bit of text ' * 9}], 'a.txt')
    (inputs / 'data' / 'torn').mkdir()
    (inputs / 'data' / 'torn' / 'meta.json').write_text('{"kind": "te')
    (place / 'inputs').symlink_to(inputs)  # which no one copies
    small = dict(n_layer=1, n_head=2, n_embd=8, block_size=8)
    letters = {'kind': 'text', 'tokenizer': {'name': 'chars', 'alphabet': 'abc'}}
    crate = picture_network(n_embd=8)
    runs = {
        'text': (text_network('aot', vocab_size=256, **small), BYTES, 'text'),
        'tost': (text_network('tost', vocab_size=256, **small), BYTES, 'text'),
        'letters': (text_network('aot', vocab_size=64, **small), letters, 'text'),
        'gaps': (text_network('crate', causal=False, vocab_size=257), BYTES, 'text'),
        'functions': (text_network('aot', n_dims=4, **small), {'kind': 'functions'}, 'linear'),
        'three': (text_network('aot', n_dims=3, **small), {'kind': 'functions'}, 'linear'),
        'masked': (masked_autoencoder('crate_mae', image_size=8, patch_size=2)[0], CLASSES, 'quads'),
        'picture': (crate, CLASSES, 'quads'),
    }
    for name, (model, data, dataset) in runs.items():
        save_run(place / name, model, data, dataset=dataset, seed=1)
    save_run(place / 'theirs', crate, {'kind': 'images', 'classes': None})  # as the authors' weights become one
    for name in ('trained', 'damaged'):
        shutil.copytree(text_run, place / name)
    (place / 'damaged' / 'last.pt').write_bytes(b'')
    shutil.copytree(place / 'text', place / 'run')
    shutil.copytree(place / 'text', place / 'out' / 'mine')
    row = {'step': 0, 'split': 'val', 'loss': 2.0, 'lr': 0.1, 'seen': 0, 'seconds': 0.0}
    (place / 'run' / 'log.jsonl').write_text(json.dumps(row) + '\n')
    (place / 'file').write_text('a text\n' * 50)
    (place / 'folder').mkdir()
    (place / 'folder' / 'a.jpg').write_bytes(JPEGS['train'][0][2])
    for name in ('there.png', 'reconstruction.png'):
        shutil.copy(place / 'folder' / 'a.jpg', place / name)
    (place / 'binary.py').write_bytes(bytes(range(256)))
    return place


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A copy of the place as working directory, from which nothing reaches a keyboard."""
    monkeypatch.setattr(sys, 'stdin', io.StringIO())
    for name in ('wandb', 'torch.utils.tensorboard'):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(shutil.copytree(place, tmp_path / 'here', symlinks=True))
    return tmp_path / 'here'


def tree(folder):
    """{path: bytes} of all files in a folder but locks."""
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.suffix != '.lock'}


def outcome(main, words, folder):
    """(what happens: 'works', 'refused', or what went wrong; what is said on standard error)."""
    err, code, files = io.StringIO(), 0, tree(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err), one_line_errors():
            main(list(words))
    except SystemExit as e:
        code = e.code or 0
    except BaseException as e:
        return f'{type(e).__name__}: {str(e)[:300]}', ''
    said = err.getvalue()
    if code == 0:
        return 'works', said
    left = sorted(str(path) for path, _ in tree(folder).items() ^ files.items())
    one = said.startswith('error: ') and said.count('\n') == 1 and len(said) < 1200
    return ('refused' if code == 2 and one and not left else f'exit code {code}, left {left[:5]}, {said[:400]!r}'), said


@pytest.mark.parametrize('name', PROGRAMS)
def test_what_works(name, here):
    """So that what is refused below, is not refused for another reason."""
    main, words = PROGRAMS[name]
    found = outcome(main, words.split(), here)
    assert found[0] == 'works', found


@pytest.mark.parametrize('name', REFUSED)
def test_mistakes_are_one_line_that_names_the_setting(name, here):
    main, words = PROGRAMS[name]
    for case in REFUSED[name].split():
        more, _, named = case.rstrip(')').partition('(') if case.endswith(')') else (case, '', '')
        setting, _, value = more.split('+')[-1].strip('-').partition('=')
        found, said = outcome(main, [*words.split(), *more.split('+')], here)
        assert found == 'refused', (case, found)
        assert named in said if named else setting in said or len(value) > 2 and value in said, (case, said)


@pytest.mark.slow
@pytest.mark.parametrize('words', [['train.py', '--model=crate', '--dataset=shapes', '--optimizer=adan'],
                                   ['analyze.py', 'curves', 'run', '--log=maybe'], ['sample.py', '--ckpt=a\x1b[2Jb'],
                                   ['prepare/shapes.py', '--train', '1' + '0' * 12]])
def test_wrong_command_lines_leave_a_fresh_clone_as_it_was(words, place):
    before = tree(place)
    done = run(*words, cwd=place)
    assert done.returncode == 2 and done.stdout == '', done
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1 and tree(place) == before
