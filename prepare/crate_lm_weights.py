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
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import Mistake, one_line_errors
from prepare.gpt2_weights import FINE_TUNING
from prepare.lib.command_line import Parser
from prepare.lib.download import local_or_fetch

URL = 'https://huggingface.co/JackBAI/CRATE-GPT-12L-Pile-600000steps/resolve/main/ckpt.pt'


def main(argv=None):
    p = Parser(__doc__)
    p.add_argument('--from', dest='source', metavar='FILE', help='a local copy instead of the download')
    p.add_argument('--out_dir', default='out/crate_lm', help='run directory to write (default: %(default)s)')
    p.add_argument('--overwrite', action='store_true', help='replace the run in this directory')
    p.add_argument('--url', default=URL, help='the file to download (default: %(default)s)')
    args = p.parse_args(argv)
    from engine import official  # here, as it imports torch: --help is fast
    from engine.checkpoint import check_new
    from engine.trained import write_run
    from model_crate_alpha import CRATEAlpha
    out = Path(args.out_dir)
    if not args.overwrite:
        check_new(out)
    path = local_or_fetch(args.source, args.url, out.parent / 'downloads' / f'crate_lm{Path(args.url).suffix}')
    model = CRATEAlpha.from_official(official.read(path), n_head=12)
    if model.config.vocab_size < 50257:
        raise Mistake(f"{path} knows {model.config.vocab_size} tokens, GPT-2's tokenizer 50257; take another file")
    write_run(out, model, FINE_TUNING, {'kind': 'text', 'tokenizer': {'name': 'gpt2'}},
              'run this again, or name another --out_dir')
    print(f'{out}: {model.num_params():,} parameters')


if __name__ == '__main__':
    with one_line_errors():
        main()
