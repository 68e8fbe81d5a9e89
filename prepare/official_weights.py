"""A file of weights as its authors released it, as a run directory: to score, to look at, and to fine-tune.

    python prepare/official_weights.py crate_base.pth --model crate --n_head 12 --out_dir out/crate_base
    python prepare/official_weights.py mae_crate_base.pth --model crate_mae --n_head 12 --out_dir out/mae
    python prepare/official_weights.py crate_gpt.pt --model crate --n_head 12 --image_size 0 --out_dir out/crate_gpt
    python prepare/official_weights.py crate-demo.pth --model crate --n_head 6 --patch_size 8 --out_dir out/crate_demo
    python eval.py --ckpt=out/crate_base --dataset=imagenet
    python train.py --init_from=out/crate_base --dataset=cifar10 --new_head=true

Files of CRATE, CRATE-alpha, CRATE-MAE, ViT (as in timm) and ViT-MAE; with --image_size 0 those of CRATE-GPT
(--model crate) and CRATE-LM (--model crate_alpha). No tensor tells the number of heads. A file of an autoencoder
without its decoder gets a small one with random weights, so its encoder alone is of use. Back again, in Python:
torch.save(model.to_official(), 'crate.pth').
"""
import math

from lib.inputs import number, option
from lib.weights import GPT2_TEXT, prepare, run

POSITIONS = 'pos_embedding', 'decoder_pos_embed', 'pos_embed'  # a file holds them under one of these names
VIEWS = {'crate_alpha': {'eval_crop': 1.0}}  # what their evaluation sees, where it is not our default
NOT_OF_TRAINING = 'model', 'init_from', 'new_head', 'image_size', 'label_smoothing'  # in config/base/transfer.py


def network_of(sd, args):
    """The network with the weights sd, {name: tensor}, for the words of the command line."""
    from engine import networks, official  # here, as it imports torch: --help is fast
    Network, Config = networks.network(args.model)
    side = math.isqrt(next((sd[name].shape[1] for name in POSITIONS if name in sd), 197) - 1)
    shape = {'n_head': args.n_head, 'patch_size': args.patch_size,
             'image_size': side * args.patch_size if args.image_size is None else args.image_size}
    if args.model == 'vit_mae':
        shape['decoder_n_head'] = args.decoder_n_head
    if args.model.endswith('_mae') and 'norm.weight' in sd and 'decoder_pred.weight' not in sd:
        print('the file has no decoder: a small random one takes its place')
        spare = Network(Config(n_layer=1, decoder_n_layer=1, n_embd=len(sd['norm.weight']), **shape)).to_official()
        sd = {name: t for name, t in spare.items() if name.startswith(('decoder', 'mask_token'))} | sd
    if args.model == 'crate' and 'cls_token' in sd and not official.has_classifier(sd):
        print('the file has no classifier: one of zeros takes its place; fine-tune it with --new_head=true')
    return Network.from_official(sd, **shape)


@run(__name__, None, option('source', 'the file of weights', metavar='file'),
     option('--model', 'its network', required=True, choices=('crate', 'crate_alpha', 'crate_mae', 'vit', 'vit_mae')),
     option('--n_head', 'heads of a layer, 12 in Base', required=True, type=int),
     number('--decoder_n_head', "heads of ViT-MAE's decoder", 16, 1, 999),
     option('--image_size', 'pixels; without, as the positions tell; 0: text', type=int),
     number('--patch_size', 'pixels', 16, 1, 999))
def main(args):
    settings, data = {}, GPT2_TEXT
    if args.image_size != 0:
        from engine.settings import HERE, read_file
        transfer = read_file(f'{HERE}/config/base/transfer.py')
        settings = {k: v for k, v in transfer.items() if k not in NOT_OF_TRAINING} | VIEWS.get(args.model, {})
        data = {'kind': 'images', 'classes': None}
    prepare(args, lambda sd: network_of(sd, args), settings, data)
