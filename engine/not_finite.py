"""Where a number that is not finite comes from. Only a run that has met one loads this."""
import torch


@torch.no_grad()
def first_not_finite(model, task, device):
    """The name of the first module of a network that makes a number which is not finite in a
    validation, such as layers.1.attn; 'the loss' if no module does."""
    names = []

    def hook_of(name):
        def hook(module, inputs, output):
            if isinstance(output, torch.Tensor) and not output.isfinite().all():
                names.append(name)
        return hook

    hooks = [module.register_forward_hook(hook_of(name))
             for name, module in model.named_modules() if name]
    model.eval()
    try:
        for x, y in task.validation_batches():
            with device.uncompiled(), device.autocast:
                model(x, y)
            if names:
                break
    finally:
        model.train()
        for hook in hooks:
            hook.remove()
    return names[0] if names else 'the loss'
