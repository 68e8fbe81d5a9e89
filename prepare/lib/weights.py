"""What the scripts share that make run directories of published weights."""
from lib.command_line import Parser
from lib.download import local_or_fetch

GPT2_TEXT = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}}
# settings with which train.py fine-tunes if no config is named: nanoGPT's, 20 steps of 32 sequences
FINE_TUNING = {'batch_size': 1, 'gradient_accumulation_steps': 32, 'max_iters': 20, 'learning_rate': 3e-5,
               'schedule': 'constant', 'warmup_iters': 0, 'min_lr': 0.0, 'eval_interval': 5, 'eval_iters': 40,
               'log_interval': 1}


def options(doc, out_dir, url, what):
    """The command line of a script that downloads weights. what: is at the url."""
    p = Parser(doc, 'the run in this directory')
    p.add_argument('--from', dest='source', metavar='FILE', help='a local copy instead of the download')
    p.add_argument('--out_dir', help=f'run directory to write (default: {out_dir})')
    p.add_argument('--url', default=url, help=f'{what} (default: %(default)s)')
    return p


def prepare(args, out_dir, network, settings, data, url='', file='', checksum=None):
    """Writes the run of network(weights), {name: tensor}, of a download or of the user's file. file: the name of the
    download; settings, data: as in engine.trained.write_run."""
    from engine import official  # here, as it imports torch: --help is fast
    from engine.checkpoint import check_new
    from engine.trained import write_run
    args.out = out = args.out_dir or out_dir
    if not args.overwrite:
        check_new(out)
    path = local_or_fetch(args, url, None if args.source else checksum, file)
    model = network(official.read(path))
    write_run(out, model, settings, data, 'run this again, or name another --out_dir')
    print(f'{out}: {model.num_params():,} parameters, {model.config.n_head} heads')
