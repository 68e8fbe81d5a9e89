"""A file of weights as its authors released it, as a run directory: to score, to look at, and to fine-tune.

    python prepare/official_weights.py crate_base.pth --model crate --n_head 12 --out_dir out/crate_base
    python prepare/official_weights.py mae_crate_base.pth --model crate_mae --n_head 12 --out_dir out/mae
    python prepare/official_weights.py crate_gpt.pt --model crate --n_head 12 --image_size 0 --out_dir out/crate_gpt
    python eval.py --ckpt=out/crate_base --dataset=imagenet
    python train.py --init_from=out/crate_base --dataset=cifar10 --new_head=true

Files of CRATE, CRATE-alpha, CRATE-MAE, ViT (as in timm) and ViT-MAE. No tensor tells the number of heads. A file of an
autoencoder without its decoder gets a small one with random weights, so its encoder alone is of use. Back again, in
Python: torch.save(model.to_official(), 'crate.pth').
"""
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.lib.command_line import Parser

# settings with which train.py fine-tunes if no config is named: those of config/base/transfer.py
FINE_TUNING = ('batch_size', 'gradient_accumulation_steps', 'epochs', 'warmup_epochs', 'optimizer',
               'learning_rate', 'min_lr', 'beta1', 'beta2', 'weight_decay', 'grad_clip', 'schedule', 'crop_scale',
               'flip', 'randaugment_n', 'randaugment_m', 'eval_view', 'eval_epochs', 'eval_iters')


def sides(text):
    """The type of an option that is a number of pixels, or height and width."""
    height, _, width = text.partition(',')
    return int(height), int(width or height)


def main(argv=None):
    p = Parser(__doc__)
    p.add_argument('file', help='the file of weights')
    p.add_argument('--model', required=True, choices=('crate', 'crate_alpha', 'crate_mae', 'vit', 'vit_mae'))
    p.add_argument('--n_head', required=True, type=int, help='heads of a layer, 12 in Base')
    p.add_argument('--decoder_n_head', type=int, help="heads of ViT-MAE's decoder (default: 16)")
    p.add_argument('--image_size', type=sides, help='pixels (default: as the positions tell), or HEIGHT,WIDTH; 0: text')
    p.add_argument('--patch_size', type=sides, default=(16, 16), help='pixels, or HEIGHT,WIDTH (default: 16)')
    p.add_argument('--out_dir', required=True, help='run directory to write')
    p.add_argument('--overwrite', action='store_true', help='replace the run in this directory')
    args = p.parse_args(argv)
    from config.base import transfer  # here, as the others import torch: --help is fast
    from engine import official
    from engine.checkpoint import check_new
    from engine.trained import write_run
    from engine.networks import network
    if args.n_head < 1:
        raise Mistake(f'--n_head={args.n_head} must be at least 1')
    if not args.overwrite:
        check_new(args.out_dir)
    sd, (Network, Config) = official.read(args.file), network(args.model)
    text = args.image_size == (0, 0)
    positions = next((sd[name] for name in official.POSITIONS if name in sd), None)
    side = math.isqrt(positions.shape[1] - 1) if positions is not None and positions.dim() == 3 else 14
    shape = {'n_head': args.n_head, 'patch_size': 0 if text else args.patch_size,
             'image_size': 0 if text else args.image_size or tuple(side * p for p in args.patch_size)}
    decoder = {'decoder_n_head': args.decoder_n_head or 16} if args.model == 'vit_mae' else {}
    try:
        if args.model.endswith('_mae') and 'decoder_pred.weight' not in sd:
            print('the file has no decoder: a small random one takes its place')
            sd = official.spare_decoder(Network, Config, sd, shape) | sd
            decoder = dict.fromkeys(decoder, 1)
        model = Network.from_official(sd, **shape, **decoder)
        if text and model.config.vocab_size < 50257:
            raise Mistake(f"it knows {model.config.vocab_size} tokens, GPT-2's tokenizer 50,257")
    except ValueError as e:
        raise Mistake(f'{args.file}: {e}') from None
    data = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}} if text else {'kind': 'images', 'classes': None}
    settings = {} if text else {k: getattr(transfer, k) for k in FINE_TUNING} | official.VIEWS.get(args.model, {})
    if hasattr(model.config, 'label_smoothing'):
        model.config.label_smoothing = transfer.label_smoothing
    write_run(args.out_dir, model, settings, data, 'run this again, or name another --out_dir')
    print(f'{args.out_dir}: {args.model}, {model.num_params():,} parameters')


if __name__ == '__main__':
    with one_line_errors():
        main()
