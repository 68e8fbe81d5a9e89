"""What the scripts share that make run directories of published weights."""
from lib.inputs import option, parse

GPT2_TEXT = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}}
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

# the functions below import what imports torch, so that --help is fast


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


def read_weights(path):
    """{name: tensor} of a file as it was published. Raises Mistake if it is damaged."""
    from engine.official import read
    return read(path)


def save_run(args, model, settings, data):
    """Write the run directory args.out and print its size. settings, data: see
    engine.trained.write_run."""
    from engine.trained import write_run
    write_run(args.out, model, settings, data, args.overwrite)
    print(f'{args.out}: {model.num_params():,} parameters, {model.config.n_head} heads')
