"""How often a network is right, of classes and of hidden tokens."""


def accuracies(logits, loss, y):
    """Metrics of classes and hidden tokens: (number of targets y that are not -1, {'loss', 'top1',
    'top5'}). top1: the share of targets that are the likeliest answer; top5: that are among the
    five likeliest. logits (.., C), y (..)."""
    is_target = y != -1
    logits = logits[is_target]
    y = y[is_target]
    likeliest = logits.topk(min(5, logits.size(-1))).indices
    hits = (likeliest == y[:, None]).cpu().double()  # (n, 5); MPS has no float64
    return len(hits), {'loss': loss, 'top1': hits[:, 0].mean(), 'top5': hits.sum(1).mean()}
