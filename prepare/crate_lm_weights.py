"""CRATE-LM as its authors trained it, as a run directory, to write, to score, and to fine-tune.

    python prepare/crate_lm_weights.py                   # 12 layers, 81.9M parameters; writes out/crate_lm
    python prepare/crate_lm_weights.py --from FILE       # your copy of the checkpoint, no download
    python sample.py --ckpt=out/crate_lm --start="The subspace"
    python eval.py --ckpt=out/crate_lm --benchmarks=all
    python train.py --init_from=out/crate_lm --dataset=shakespeare

The weights are from huggingface.co/JackBAI/CRATE-GPT-12L-Pile-600000steps: 600,000 steps on the uncopyrighted part of
the Pile, in GPT-2's tokens. The download has not been tried, and the name of the file there, ckpt.pt, is a guess: it is
the name under which the authors' training script saves. If the server knows no such file, look up its name on that page
and give --url, or download it and give --from. What is read is checked tensor by tensor.

Expect 81,934,848 parameters. prepare/official_weights.py reads files of other sizes.
"""  # noqa: E501 (--help shows it)
from lib.inputs import local, local_or_fetch, option, run
from lib.weights import FINE_TUNING, read_weights, save_run, text_data, weight_arguments

from engine.networks import network_class

URL = 'https://huggingface.co/JackBAI/CRATE-GPT-12L-Pile-600000steps/resolve/main/ckpt.pt'


def main(argv=None):
    args = weight_arguments(
        __doc__, argv,
        local('a local copy instead of the download'),
        option('--url', 'the file to download', default=URL),
        out_dir='out/crate_lm')

    path = local_or_fetch(args, args.url, name='crate_lm.pt')
    weights = read_weights(path)
    model = network_class('crate_alpha').from_official(weights, n_head=12)
    save_run(args, model, FINE_TUNING, text_data(model, 'gpt2'))


if __name__ == '__main__':
    run(main)
