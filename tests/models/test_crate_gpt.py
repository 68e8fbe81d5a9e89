"""CRATE-GPT: equal to the authors' code through its own weights, which go both ways; it starts as
theirs does; their files as run directories."""
import math

import numpy as np
import pytest
import torch
from helpers import (config_of, equal, fails, go, golden, golden_pictures, save_run, save_text, text_network, tokens,
                     weights, wild)

import eval as scores
import sample
from model_crate import CRATE, CRATEConfig
from prepare import official_weights


def golden_text(sd=None, n_head=3, **settings):
    """(network, golden file, token ids, targets), by the golden file's recipe."""
    made, g = golden('crate_gpt')
    model = CRATE.from_official(made if sd is None else sd, n_head=n_head, image_size=0, patch_size=0, **settings)
    return model.eval(), g, *(torch.tensor(g['input'][k]) for k in ('tokens', 'targets'))


# ---- the authors' code


def test_crate_gpt_equals_the_released_code_layer_by_layer():
    model, g, x, y = golden_text()
    logits, loss = model(x, y)
    assert (logits[:, -1] - torch.tensor(g['outputs']['logits_last_position'])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(g['outputs']['loss'], abs=1e-5)
    z = model.embed(x)
    for l, layer in enumerate(model.layers):
        z = layer(z)
        want = torch.tensor(g['outputs']['last_token_of_first_row_after_each_layer'][l])
        assert (z[0, -1] - want).abs().max() < 1e-5
        zeros, share = (z == 0).float().mean().item(), g['outputs']['zero_fraction_after_each_layer'][l]
        assert zeros == pytest.approx(share, abs=1.5 / z.numel())
    assert model.num_params() == g['parameter_count']['all']
    assert model.num_params() - model.embed.pos_emb.weight.numel() == g['parameter_count']['without positions']
    assert all(getattr(model.config, k) == g['constructor'][k] for k in g['constructor'])


def test_weights_go_both_ways():
    sd, g = golden('crate_gpt')
    model, _, x, y = golden_text()
    back = model.to_official()
    assert {k: list(v.shape) for k, v in back.items()} == {row[0]: row[1] for row in g['state_dict']}
    assert all(torch.equal(back[k], sd[k]) for k in sd)
    for k in back.keys() - sd.keys():  # the causal masks: ones up to the diagonal
        assert k.endswith('.attn.bias') and all(int(row.sum()) == i + 1 == row[:i + 1].sum()
                                                for i, row in enumerate(back[k][0, 0]))
    for variant in (back, {'model': {f'_orig_mod.{k}': v for k, v in back.items()}, 'iter_num': 3},
                    {'state_dict': {f'module.{k}': v for k, v in sd.items()}},
                    {f'module._orig_mod.{k}': v for k, v in sd.items()}):  # with masks and without
        assert equal(golden_text(variant)[0].state_dict(), model.state_dict())
    assert not torch.equal(golden_text(lam=0.5)[0](x)[0], model(x)[0])  # other settings reach the network


@pytest.mark.parametrize('change, word', [
    ({'transformer.h.1.ista.weight': None}, 'h.1.ista.weight: missing'), ({'surprise': torch.ones(1)}, 'surprise'),
    ({'transformer.h.1.attn.c_proj.bias': torch.ones(3)}, r'h.1.attn.c_proj.bias: \(3,\), expected \(24,\)'),
    ({'transformer.wte.weight': torch.ones(23, 24)}, 'lm_head.weight differs'),
    ({'transformer.wpe.weight': None}, 'transformer.wpe.weight: missing'),
    ({'transformer.h.0.ista.weight': None}, 'transformer.h.0.ista.weight: missing'),
    ({'transformer.ln_f.weight': torch.ones(24)}, 'ln_f.weight: .*, expected none')])
def test_what_does_not_fit_is_named(change, word):
    sd = golden('crate_gpt')[0] | change
    with pytest.raises(ValueError, match=word):
        golden_text({k: v for k, v in sd.items() if v is not None})


def test_another_form_than_the_authors_does_not_fit():
    for settings, word in ((dict(final_norm=True), 'read.norm.weight: missing'), (dict(n_head=5), 'n_head=5')):
        with pytest.raises(ValueError, match=word):
            golden_text(**settings)


def test_text_read_as_pictures_says_what_to_type():
    with pytest.raises(ValueError, match='of a CRATE-GPT, which reads text: give --image_size=0'):
        golden_pictures('crate_classifier', golden('crate_gpt')[0])


# ---- how it starts


def share_within(p, bound):
    return (p.abs() < bound).float().mean().item()


@pytest.mark.parametrize('causal', [True, False])
def test_it_starts_as_the_released_code_does(causal):
    """By statistics: a normal variable is within one standard deviation with probability 0.683 and
    within two with 0.954; a uniform one is within half its bound with 0.5."""
    torch.manual_seed(0)
    model = CRATE(CRATEConfig(n_layer=8, n_head=4, n_embd=192, image_size=0, vocab_size=512, block_size=256,
                              causal=causal))
    tables, stds = (model.embed.tok_emb.weight, model.embed.pos_emb.weight), {0.02: [], 0.005: []}
    stds[0.02] += [*tables, *(layer.attn.U.weight for layer in model.layers)]
    stds[0.005] += [layer.attn.W.weight for layer in model.layers]  # 0.02 / sqrt(2 x 8)
    for std, matrices in stds.items():
        for p in matrices:
            assert p.std().item() == pytest.approx(std, rel=0.03) and abs(p.mean().item()) < 0.03 * std
            assert share_within(p, std) == pytest.approx(0.683, abs=0.015)
            assert share_within(p, 2 * std) == pytest.approx(0.954, abs=0.01)
    kaiming = torch.nn.init.kaiming_uniform_(torch.empty(192, 192))
    for D in (layer.ista.D for layer in model.layers):
        assert D.std().item() == pytest.approx(kaiming.std().item(), rel=0.02)
        assert D.abs().max().item() == pytest.approx(kaiming.abs().max().item(), rel=0.01)
        assert share_within(D, D.abs().max() / 2) == pytest.approx(0.5, abs=0.015)
    for name, p in model.named_parameters():
        if p.dim() == 1:
            assert torch.equal(p, torch.full_like(p, float('norm' in name and name.endswith('weight')))), name


def test_the_released_size():
    with torch.device('meta'):
        model = CRATE(CRATEConfig(n_layer=12, n_head=12, n_embd=768, image_size=0, vocab_size=50304, block_size=1024))
    assert model.num_params() == 60_699_648
    assert model.num_params() - model.embed.pos_emb.weight.numel() == 59_913_216


# ---- the authors' files on the command line


class PairsWithoutDownload:
    """In the place of GPT-2's tokenizer: bytes, which with padding are as many tokens."""
    n_vocab, eot_token = 50257, 50256

    def encode_ordinary(self, text):
        return list(text.encode())

    def decode_bytes(self, ids):
        return bytes(97 + i % 26 for i in ids)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an official file, w.pt, the same weights as a run, and a dataset, `pairs`."""
    monkeypatch.setattr('tasks.tokenizer.gpt2_bpe', PairsWithoutDownload)
    model = text_network('crate', vocab_size=50304, n_embd=6)
    torch.save({'model': {f'_orig_mod.{k}': v for k, v in model.to_official().items()}, 'iter_num': 600_000,
                'best_val_loss': torch.tensor(3.2), 'config': {'dataset': 'openwebtext'}}, tmp_path / 'w.pt')
    save_run(tmp_path / 'run', model, {'kind': 'text', 'tokenizer': {'name': 'gpt2'}})
    ids = np.random.default_rng(0).integers(0, 50257, 200)
    gpt2 = type('GPT2', (), {'vocab_size': 50257, 'spec': {'name': 'gpt2'}})
    save_text(tmp_path / 'data' / 'pairs', gpt2, {'train': ids, 'val': ids}, {'train': 800, 'val': 800})
    return tmp_path


def converted(place, *more, n_head=2):
    official_weights.main([f'{place}/w.pt', '--model=crate', f'--n_head={n_head}', '--image_size=0',
                           f'--out_dir={place}/theirs', '--overwrite', *more])
    return f'--ckpt={place}/theirs'


def test_an_official_file_writes_and_is_scored_as_a_run_with_its_weights(place, capsys):
    theirs, said = converted(place), []
    for main, words in ((sample.main, ['--start=ab', '--max_new_tokens=9']),
                        (scores.main, ['--dataset=pairs', f'--data_dir={place}/data'])):
        for ckpt in (theirs, f'--ckpt={place}/run'):
            capsys.readouterr()
            main([ckpt, *words, '--device=cpu', '--dtype=float32'])
            said.append(capsys.readouterr().out.replace('theirs', 'run'))
    assert said[0] == said[1] and said[2] == said[3] and 'tokens, loss' in said[2]


def test_training_starts_from_an_official_file(place):
    converted(place)
    (place / 'c.py').write_text("dataset = 'pairs'\nmax_iters = 0\neval_iters = 1\n")
    go(f'{place}/c.py', f'--data_dir={place}/data', f'--init_from={place}/theirs', f'--out_dir={place}/a')
    assert equal(weights(place / 'a'), weights(place / 'run', 'best'))
    assert config_of(place / 'a')['n_layer'] == 3 and config_of(place / 'a')['final_norm'] is False


def test_other_files_get_one_line(place, capsys):
    torch.save(golden_pictures('crate_classifier')[0].to_official(), place / 'w.pt')
    told = fails(capsys, lambda *words: converted(place, n_head=4))
    assert 'image_size=0: transformer.wte.weight: missing' in told
    assert not (place / 'theirs').exists()


def test_without_the_norm_the_output_map_reads_the_last_layer():
    model, x = wild(text_network('crate')), tokens(2, 16)
    z = model.layers(model.embed(x))
    assert math.isclose(model(x)[0][1, 3, 2].item(), (z[1, 3] @ model.embed.tok_emb.weight[2]).item(), rel_tol=1e-4)
