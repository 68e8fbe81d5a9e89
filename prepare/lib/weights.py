"""What the scripts share that make run directories of published weights."""
from engine.mistakes import Mistake
from lib.inputs import option, parse
from tasks.files import split_meta

# the words of --tokenizer that name no dataset, and how many tokens there are
VOCABULARIES = {'gpt2': 50257, 'bytes': 256}
TOKENIZER = option('--tokenizer', 'gpt2, bytes, or the folder of a dataset in whose tokens the '
                   'network was trained', default='gpt2')
# settings with which train.py fine-tunes if no config is named: nanoGPT's, 20 steps of 32 sequences
FINE_TUNING = {
    'batch_size': 1,
    'gradient_accumulation_steps': 32,
    'max_iters': 20,
    'learning_rate': 3e-5,
    'schedule': 'constant',
    'warmup_iters': 0,
    'min_lr': 0.0,
    'eval_interval': 5,
    'eval_iters': 40,
    'log_interval': 1,
}

# the functions below import modules of engine/ themselves: these load torch, and --help would wait


def weight_arguments(doc, argv, *options, out_dir=None):
    """The command line of a script that makes a run directory, args.out, as a namespace.

    doc: the docstring of the script, which --help shows. argv: the words, or None for those that
    the user typed. out_dir: the default of --out_dir, or None if the user must type it. Raises
    Mistake if there is a run that may not be replaced.
    """
    folder = option('--out_dir', 'run directory to write', dest='out', default=out_dir,
                    required=out_dir is None)
    args = parse(doc, argv, folder, *options)
    from engine.checkpoint import check_new
    if not args.overwrite:
        check_new(args.out)
    return args


def read_weights(path, nest=''):
    """{name: tensor} of a file as it was published, see published.read. Raises Mistake if it is
    damaged."""
    from lib.published import read
    return read(path, nest)


def text_data(model, tokenizer):
    """What config.json says of the data of a language model. tokenizer: the word of --tokenizer.
    Raises Mistake if the vocabulary of the network is not that of the tokenizer; it may be rounded
    up to a multiple of 128."""
    if tokenizer in VOCABULARIES:
        spec = {'name': tokenizer}
        size = VOCABULARIES[tokenizer]
    else:
        meta, _ = split_meta(tokenizer, 'train', 'text')
        spec = meta['tokenizer']
        size = meta['vocab_size']
    rounded_up = -(-size // 128) * 128
    if not size <= model.config.vocab_size <= rounded_up:
        raise Mistake(f'the network knows {model.config.vocab_size} tokens, but '
                      f'--tokenizer={tokenizer} has {size}; prepare the text that it was trained '
                      'on, and give that folder as --tokenizer')
    return {'kind': 'text', 'tokenizer': spec}


def save_run(args, model, settings, data):
    """Write the run directory args.out and print its size. settings, data: see
    weights.runs.write_run."""
    from engine.networks import num_params
    from weights.runs import write_run
    write_run(args.out, model, settings, data, args.overwrite)
    print(f'{args.out}: {num_params(model):,} parameters, {model.config.n_head} heads')
