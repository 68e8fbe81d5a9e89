"""What others compute, written plainly, to measure speed against. Weights and results are those of our networks."""
import torch.nn.functional as F

from model_aot import MHSA, AoT, AoTConfig
from model_crate import CRATE, ISTA, MSSA, CRATEConfig

from engine.settings import Mistake

# ---- CRATE as its authors' code computes it (github.com/Ma-Lab-Berkeley/CRATE) --------------------------------------


class ReleasedMSSA(MSSA):
    """MSSA as a product, a scale, a softmax and a product, each an operation of its own."""

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1)).transpose(1, 2)                       # (B, K, N, p)
        a = self.drop((w @ w.mT * w.size(-1) ** -0.5).softmax(-1))                      # (B, K, N, N)
        h = (a @ w).transpose(1, 2).flatten(2)                                          # (B, N, K p)
        return h if self.W is None else self.drop(self.W(h))                            # (B, N, d)


class ReleasedISTA(ISTA):
    """ISTA with D^* D z and D^* z apart: three products with D where two are enough."""

    def forward(self, z):
        a = F.linear(F.linear(z, self.D), self.D.T)                                     # D^* D z: (B, N, d)
        b = F.linear(z, self.D.T)                                                       # D^* z: (B, N, d)
        return F.relu(z + (self.eta * (b - a) - self.eta * self.lam))


class ReleasedCRATE(CRATE):
    def __init__(self, config):
        if not isinstance(config, CRATEConfig):
            raise Mistake('the released way is written for CRATE; name another row')
        super().__init__(config)
        for layer in self.layers:
            layer.attn.__class__ = ReleasedMSSA
            layer.ista.__class__ = ReleasedISTA


# ---- GPT-2 as nanoGPT computes it (github.com/karpathy/nanoGPT) -----------------------------------------------------

class FusedMHSA(MHSA):
    """Attention by PyTorch's fused kernel alone."""

    def forward(self, z):
        q, k, v = self.QKV(z).unflatten(-1, (3, self.K, -1)).permute(2, 0, 3, 1, 4)     # each (B, K, N, p)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W(h.transpose(1, 2).flatten(2))                                     # (B, N, d)


class NanoGPT(AoT):
    """GPT-2 with all logits at once, in float32 for the loss. It writes without a cache of the past."""

    def __init__(self, config):
        if not (isinstance(config, AoTConfig) and config.attn == 'mhsa' and config.mlp):
            raise Mistake("nanoGPT's way is written for GPT-2; name another row")
        super().__init__(config)
        for layer in self.layers:
            layer.attn.__class__ = FusedMHSA

    def generate(self, idx, max_new_tokens, use_cache=False):
        return super().generate(idx, max_new_tokens, use_cache=False)

    def forward(self, x, y=None):
        z = self.read.norm(self.layers(self.embed(x)))                                  # (B, N, d)
        logits = F.linear(z, self.read.weight)                                          # (B, N, vocab_size)
        if y is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)
