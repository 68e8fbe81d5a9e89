"""export.py: what is read back is the same network, bit for bit; an export that lies is refused in one
line; other programs read model.safetensors."""
import json
import shutil
import sys

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from helpers import equal, fails, save_run, snapshot, text_network, tokens, train_fast

import analyze
import eval as scores
import export
import sample
import train
from engine.checkpoints import load_model, load_weights
from engine.rundir import load_checkpoint
from model_crate import CRATE, CRATEConfig

BYTES = {'kind': 'text', 'tokenizer': {'name': 'bytes'}}


def exported(out, run, *words):
    export.main([f'--ckpt={run}', f'--out={out}', *words])
    return out


@pytest.fixture(scope='module')
def text(text_run, tmp_path_factory):
    return exported(tmp_path_factory.mktemp('exports') / 'text', text_run)


@pytest.fixture(scope='module')
def picture(picture_run, tmp_path_factory):
    return exported(tmp_path_factory.mktemp('exports') / 'pictures', picture_run)


def same_function(a, b, x):
    """Whether the networks of two checkpoints are of one kind and config, and give equal outputs."""
    a, b = (load_model(load_weights(str(path))) for path in (a, b))
    assert type(a) is type(b) and a.config == b.config
    with torch.no_grad():
        return equal(a.state_dict(), b.state_dict()) and torch.equal(a(x)[0], b(x)[0])


# ---- the same network

def test_text_is_continued_as_before(text, text_run, capsys):
    assert same_function(text, text_run, tokens(3, 16, vocab_size=256))
    said = []
    for ckpt in (text, text_run, text / 'model.safetensors'):
        capsys.readouterr()
        sample.main([f'--ckpt={ckpt}', '--start=the', '--max_new_tokens=20'])
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1 and said[0].startswith('the')


def test_pictures_are_classified_and_scored_as_before(picture, picture_run, pictures_data, capsys):
    """By the average of the weights, which the run has."""
    assert equal(load_weights(str(picture))['weights'], load_checkpoint(picture_run)['ema'])
    assert same_function(picture, picture_run, torch.randn(2, 3, 8, 8))
    said = []
    for ckpt in (picture, picture_run):
        capsys.readouterr()
        scores.main([f'--ckpt={ckpt}', f'--data_dir={pictures_data}'])
        said.append(capsys.readouterr().out.replace(str(ckpt), '').replace('best, ', ''))  # an export has no names
    assert said[0] == said[1] and 'quads val: 20 pictures' in said[0]


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_masked_autoencoders(name, pretrained, tmp_path):
    out = exported(tmp_path / 'a', pretrained / name)
    x, noise = torch.randn(2, 3, 8, 8), torch.rand(2, 16)
    a, b = (load_model(load_weights(str(path))) for path in (out, pretrained / name))
    assert equal(a.state_dict(), b.state_dict()) and torch.equal(a(x, noise)[1], b(x, noise)[1])
    own = name.removesuffix('_mae')
    assert load_weights(str(out), own)['headless'] == name  # its classifier starts from it, too


@pytest.mark.parametrize('name, settings', [('crate', {'causal': False, 'vocab_size': 257}), ('aot', {'n_dims': 4}),
                                            ('aot', {'attn': 'mhsa', 'mlp': True, 'vocab_size': 256})])
def test_other_tasks(name, settings, tmp_path):
    model = text_network(name, **settings)
    functions = 'n_dims' in settings
    run = save_run(tmp_path / 'run', model, {'kind': 'functions'} if functions else BYTES, dataset='linear')
    x = torch.randn(2, 5, 4) if functions else tokens(2, 9)
    out = exported(tmp_path / 'a', run)
    a, b = (load_model(load_weights(str(path))) for path in (out, run))
    y = (torch.randn(2, 5),) if functions else ()
    assert torch.equal(a(x, *y)[0], b(x, *y)[0]) and a.config == b.config


@pytest.mark.slow
def test_of_self_distillation_it_is_the_teacher(pictures_data, tmp_path):
    train_fast('--model=dino', f'--data_dir={pictures_data}', '--dataset=quads', '--patch_size=4', '--n_layer=1',
               '--n_head=2', '--n_embd=16', '--batch_size=4', '--max_iters=2', '--eval_iters=1', '--warmup_iters=1',
               f'--out_dir={tmp_path}/run')
    out = exported(tmp_path / 'a', tmp_path / 'run')
    assert json.loads((out / 'config.json').read_text())['model_type'] == 'crate'
    a, b = (load_model(load_weights(str(path))) for path in (out, tmp_path / 'run'))
    assert equal(a.state_dict(), b.state_dict())


def test_weights_that_are_shared_are_written_once(tmp_path):
    model = text_network('crate', vocab_size=256)
    out = exported(tmp_path / 'a', save_run(tmp_path / 'run', model, BYTES))
    held = safetensors.torch.load_file(out / 'model.safetensors')
    assert len(held) == len(model.state_dict()) - 1 and sum(t.numel() for t in held.values()) == model.num_params()
    read = load_weights(str(out))['weights']
    assert equal(read, model.state_dict()) and len({t.data_ptr() for t in read.values()}) == len(held)


def test_fine_tuning_starts_from_the_weights_and_the_settings(text, text_run, tiny, tmp_path):
    for ckpt, out in ((text, 'a'), (text_run, 'b')):
        train_fast(f'--init_from={ckpt}', tiny[0], f'--out_dir={tmp_path}/{out}', '--max_iters=2')
    a, b = (load_checkpoint(tmp_path / out / 'last.pt') for out in 'ab')
    assert equal(a['weights'], b['weights']) and a['config']['dropout'] == b['config']['dropout'] == 0.2


def test_it_is_looked_into(picture, picture_run, pictures_data, tmp_path):
    for ckpt, beside, out in ((picture, picture_run, 'a'), (picture_run, picture, 'b')):
        analyze.main(['layers', f'--ckpt={ckpt}', f'--beside={beside}', f'--data_dir={pictures_data}',
                      '--num_samples=4', f'--out={tmp_path}/{out}.png'])
    a, b = ({line.split(',', 1)[1] for line in (tmp_path / f'{out}.csv').read_text().splitlines()} for out in 'ab')
    assert a == b


# ---- what others see

def test_the_library_alone_reads_the_weights(picture, picture_run):
    path, model = picture / 'model.safetensors', load_model(load_checkpoint(picture_run))
    arrays = safetensors.numpy.load_file(path)
    assert equal({k: torch.from_numpy(v) for k, v in arrays.items()}, model.state_dict())
    with safetensors.safe_open(path, 'np') as f:
        assert f.metadata()['format'] == 'pt'
    missing, unexpected = safetensors.torch.load_model(CRATE(model.config), path)
    assert not missing and not unexpected


def test_config_json_says_what_the_hub_shows_and_what_builds_the_network(picture, text):
    held = json.loads((picture / 'config.json').read_text())
    assert held['architectures'] == ['CRATE'] and held['model_type'] == 'crate' and held['dtype'] == 'float32'
    assert held['id2label'] == {'0': 'a', '1': 'b', '2': 'c', '3': 'd'}
    built = CRATE(CRATEConfig(**held['model_config'])).state_dict()
    assert built.keys() == load_weights(str(picture))['weights'].keys()
    assert not held['config'].keys() & {'data_dir', 'out_dir', 'device'}  # of this machine
    assert json.loads((text / 'config.json').read_text())['data'] == BYTES
    assert {p.name for p in picture.iterdir()} == {'config.json', 'model.safetensors'}


def test_everyone_may_read_what_everyone_may_read(picture, tmp_path):
    (tmp_path / 'new').touch()
    assert (picture / 'model.safetensors').stat().st_mode == (tmp_path / 'new').stat().st_mode


def test_the_authors_format_is_written_too(picture, picture_run, tmp_path, capsys):
    out, path = tmp_path / 'a', tmp_path / 'crate.pth'
    exported(out, picture_run, f'--authors={path}')
    assert f'{out}: model.safetensors and config.json, CRATE of ' in (line := capsys.readouterr().out)
    assert f'and {path}; now try: python sample.py --ckpt={out} --image=PICTURE' in line and line.count('\n') == 1
    theirs = load_weights(f'official:{path}', 'crate', n_head=2, patch_size=4)
    assert equal(theirs['weights'], load_weights(str(picture))['weights'])
    exported(tmp_path / 'back', f'official:{path}', '--model=crate', '--n_head=2', '--patch_size=4')
    assert equal(load_weights(f'{tmp_path}/back')['weights'], theirs['weights'])


# ---- mistakes

def test_mistakes_get_one_line_and_touch_nothing(text, text_run, picture_run, tiny, tmp_path, capsys, monkeypatch):
    held, run = snapshot(text), snapshot(text_run)
    for words, message in (
            ([f'--out={text}'], 'already holds config.json and model.safetensors; replace them with --overwrite=true'),
            ([f'--out={text_run}', '--overwrite=true'], 'holds a run (best.pt'), ([], '--out=FOLDER'),
            ([f'--out={tmp_path}/a', '--ckpt=nowhere'], 'no checkpoint nowhere'),
            ([f'--out={tmp_path}/a', '--n_layer=3'], 'does not fit n_layer=3'),
            ([f'--out={tmp_path}/a', f'--authors={tmp_path}/a.pth'], 'AoT has no format of the authors'),
            ([f'--out={tmp_path}/a', f'--ckpt={picture_run}', f'--authors={tmp_path}/no/a.pth'], 'another --authors'),
            ([f'--out={tmp_path}/a', f'--ckpt={picture_run}', f'--authors={text}/config.json'], 'config.json exists'),
            ([f'--out={text}/config.json/a'], 'cannot be written'),
            ([f'--out={tmp_path}/a', '--output=a'], 'did you mean out?')):
        words = words if any('--ckpt' in w for w in words) else [f'--ckpt={text_run}', *words]
        assert message in fails(capsys, export.main, *words)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={text}')
    assert 'holds weights alone, so it cannot be resumed: start from them with train.py --init_from=' in said
    assert 'already holds a run (config.json)' in fails(capsys, train.main, *tiny, f'--out_dir={text}')
    assert 'did you mean' in fails(capsys, export.main, f'--ckpt={text}', f'--out={tmp_path}/a', '--overwrit=true')
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    monkeypatch.setitem(sys.modules, 'safetensors.torch', None)
    assert 'pip install safetensors' in fails(capsys, export.main, f'--ckpt={text_run}', f'--out={tmp_path}/a')
    assert 'pip install safetensors' in fails(capsys, sample.main, f'--ckpt={text}')
    assert snapshot(text) == held and snapshot(text_run) == run and not list(tmp_path.iterdir())


def test_an_export_is_replaced_if_asked_and_a_full_disk_says_so(text, picture_run, tmp_path, capsys, monkeypatch):
    out = shutil.copytree(text, tmp_path / 'a')
    with monkeypatch.context() as patch:
        patch.setattr('safetensors.torch.save', lambda *a: (_ for _ in ()).throw(OSError('full')))
        words = f'--ckpt={picture_run}', f'--out={out}', '--overwrite=true'
        assert 'run this again, or name another --out' in fails(capsys, export.main, *words)
    assert snapshot(out) == snapshot(text)  # what was there before is whole
    export.main(list(words))
    assert same_function(out, picture_run, torch.randn(2, 3, 8, 8)) and len(list(out.iterdir())) == 2
    assert 'holds exported weights' in fails(capsys, train.main, f'--init_from={out}', f'--out_dir={out}',
                                             '--overwrite=true')


# ---- strangers

def config(**change):
    """An export with other values in its config.json; None leaves one out."""
    def lie(out):
        held = json.loads((out / 'config.json').read_text()) | change
        (out / 'config.json').write_text(json.dumps({k: v for k, v in held.items() if v is not None}))
    return lie


def network(**change):
    def lie(out):
        held = json.loads((out / 'config.json').read_text())
        config(model_config=held['model_config'] | change)(out)
    return lie


def weights(change):
    def lie(out):
        with safetensors.safe_open(path := out / 'model.safetensors', 'pt') as f:
            shared = f.metadata()
        safetensors.torch.save_file(change(safetensors.torch.load_file(path)), path, shared)
    return lie


def table(change):
    return weights(lambda held: held | {TABLE: change(held[TABLE])})


def written(name, content):
    return lambda out: (out / name).write_bytes(content)


TABLE = 'embed.tok_emb.weight'  # of the text run: (256, 16)
LIES = {
    'no_config': (lambda out: (out / 'config.json').unlink(), 'config.json is no file'),
    'config_folder': (lambda out: ((out / 'config.json').unlink(), (out / 'config.json').mkdir()), 'is no file'),
    'config_text': (written('config.json', b'hello'), 'config.json: JSONDecodeError'),
    'config_bytes': (written('config.json', b'\xff\xfe'), 'config.json: UnicodeDecodeError'),
    'config_deep': (written('config.json', b'[' * 10 ** 5), 'config.json: RecursionError'),
    'config_digits': (written('config.json', b'{"step": ' + b'9' * 10 ** 5 + b'}'), 'config.json: ValueError'),
    'config_list': (written('config.json', b'[]'), 'it is of type list'),
    'config_large': (written('config.json', b' ' * 2 ** 25), 'at most 16,777,216 bytes'),
    'of_a_run': (config(model_config=None, data=None), 'is missing'),
    'of_others': (written('config.json', b'{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}'), 'missing'),
    'model': (config(model_type='../aot'), "model='../aot' is unknown"),
    'model_number': (config(model_type=3), 'type int'),
    'other_model': (config(model_type='vit'), 'from another version of ViTConfig'),
    'version': (config(format=3), 'another version'), 'step': (config(step=-1), 'out of range'),
    'step_word': (config(step='x'), 'step is of type str'), 'data': (config(data={'kind': 'sounds'}), 'data'),
    'tokenizer': (config(data={'kind': 'text', 'tokenizer': {'name': 'gpt2'}}), 'of 50257 tokens'),
    'data_images': (config(data={'kind': 'images', 'classes': ['a']}), 'its data are images'),
    'nan': (config(config={'learning_rate': float('nan')}), 'out of range'),
    'seed': (config(config={'seed': 'x'}), 'config'),
    'one_layer': (network(n_layer=1), 'layers.1'), 'heads': (network(n_head=0), ''),
    'unknown': (network(surprise=1), 'it has surprise'), 'word': (network(n_embd='x'), "n_embd='x'"),
    'no_weights': (lambda out: (out / 'model.safetensors').write_bytes(b''), 'header too small'),
    'pickle': (lambda out: torch.save({'a': torch.ones(1)}, out / 'model.safetensors'), 'its header has more than'),
    'cut': (lambda out: written('model.safetensors', (out / 'model.safetensors').read_bytes()[:-1])(out), 'not fully'),
    'none': (weights(lambda held: {}), 'is damaged'),
    'missing': (weights(lambda held: {k: v for k, v in held.items() if k != TABLE}), TABLE),
    'extra': (weights(lambda held: held | {'surprise': torch.ones(1)}), 'surprise'),
    'escape': (weights(lambda held: held | {'\x1b[2J': torch.ones(1)}), 'a name that is none'),
    'shape': (table(lambda t: t.T.contiguous()), TABLE), 'flat': (table(torch.Tensor.flatten), TABLE),
    'dimensions': (table(lambda t: t.view(*[1] * 20, 256, 16)), 'more than 8 dimensions'),
    'integers': (table(torch.Tensor.long), TABLE), 'empty': (table(lambda t: t[:0]), TABLE),
    'float8': (table(lambda t: t.to(torch.float8_e5m2)), 'float8'), 'complex': (table(lambda t: t + 0j), 'complex64')}


@pytest.mark.parametrize('name', LIES)
def test_an_export_that_lies_is_refused(name, text, tiny, tmp_path, capsys):
    change, message = LIES[name]
    out = shutil.copytree(text, tmp_path / 'a')
    change(out)
    before = snapshot(out) if (out / 'config.json').is_file() else None
    readers = ((sample.main, f'--ckpt={out}', '--start=the'), (scores.main, f'--ckpt={out}', *tiny[:2]),
               (train.main, f'--init_from={out}', *tiny[:2], f'--out_dir={tmp_path}/new'),
               (export.main, f'--ckpt={out}', f'--out={tmp_path}/new'))
    for main, *words in (readers[0], readers[1 + list(LIES).index(name) % 3]):
        said = fails(capsys, main, *words)
        assert message in said and len(said) < 1000 and said.isprintable(), said
        assert any(words in said for words in ('take another', 'train it again', 'choose', 'expected', 'must ',
                                               'not divisible', 'start from scratch')), said
    assert before is None or snapshot(out) == before
    assert not (tmp_path / 'new').exists()
