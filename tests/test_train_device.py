"""The whole of train.py on a device that is not the CPU: every tensor is made there, or sent there."""
import pytest
from helpers import OF_AUTOENCODERS, OF_PICTURES, column, go, run

OF_TEXT = ['--model=aot', '--n_layer=2', '--n_head=2', '--n_embd=16', '--max_iters=4', '--eval_interval=2',
           '--log_interval=1', '--batch_size=4', '--eval_iters=2', '--dtype=float32']
KINDS = {
    'text': [*OF_TEXT, '--block_size=16', '--optimizer=lion', '--gradient_accumulation_steps=2'],
    'text, muon': [*OF_TEXT, '--block_size=16', '--optimizer=muon', '--telemetry=true', '--ema=0.9'],
    'masked text': [*OF_TEXT, '--model=crate', '--block_size=16', '--causal=false', '--optimizer=adamw'],
    'functions': [*OF_TEXT, '--dataset=linear', '--n_dims=4', '--block_size=8', '--recompute=true'],
    'pictures': [*OF_PICTURES, '--randaugment_n=3', '--label_smoothing=0.1', '--telemetry=true'],
    'pictures, vit': [*OF_PICTURES, '--model=vit', '--randaugment_n=3', '--optimizer=adam'],
    'JPEG pictures': [*OF_PICTURES, '--dataset=pack', '--image_size=8', '--workers=0'],
    **{f'masked pictures, {name}': words for name, words in OF_AUTOENCODERS.items()}}


def words_for(kind, bytes_data, pictures_data):
    text = 'text' in kind or kind == 'functions'
    data = (bytes_data, 'tiny') if text else (pictures_data, 'quads')
    data = [f'--data_dir={data[0]}', f'--dataset={data[1]}']
    return data + KINDS[kind]


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_a_run_on_another_device_is_the_run_on_the_cpu(kind, bytes_data, pictures_data, tmp_path):
    words = words_for(kind, bytes_data, pictures_data)
    go(*words, f'--out_dir={tmp_path}/cpu')
    done = run('tests/far.py', *words, '--device=far', f'--out_dir={tmp_path}/far')
    assert done.returncode == 0 and '\non far x 1' in done.stdout, done.stderr
    for split in ('train', 'val'):
        assert column(tmp_path / 'far', split) == pytest.approx(column(tmp_path / 'cpu', split), rel=2e-3)


@pytest.mark.slow
def test_a_tensor_on_the_cpu_in_a_forward_pass_is_found(bytes_data, tmp_path):
    words = words_for('text', bytes_data, None)
    done = run('tests/far.py', 'stray', *words, '--device=far', f'--out_dir={tmp_path}/a')
    assert done.returncode and 'aten.add.Tensor: a tensor of shape (16,) is on the CPU' in done.stderr
