"""What others compute, written plainly, to measure speed against.

Weights and results are those of our networks.
"""
import torch.nn.functional as F

from model_aot import MHSA, AoT, AoTConfig
from model_crate import CRATE, ISTA, MSSA, CRATEConfig

from engine.mistakes import Mistake

# ---- CRATE as its authors' code computes it (github.com/Ma-Lab-Berkeley/CRATE) ------------------


class ReleasedMSSA(MSSA):
    """MSSA as a product, a scale, a softmax and a product, each an operation of its own."""

    def forward(self, z):
        proj = self.U(z)                                    # (B, N, K p)
        proj = proj.unflatten(2, (self.K, -1))              # (B, N, K, p)
        proj = proj.transpose(1, 2)                         # heads first: (B, K, N, p)

        scores = proj @ proj.mT                             # (B, K, N, N)
        scores = scores * proj.size(-1) ** -0.5
        weights = self.drop(scores.softmax(dim=-1))
        ssa = weights @ proj                                # (B, K, N, p)

        ssa = ssa.transpose(1, 2).flatten(2)                # heads in a row again: (B, N, K p)
        if self.W is None:                                  # one full head
            return ssa
        return self.drop(self.W(ssa))                       # (B, N, d)


class ReleasedISTA(ISTA):
    """ISTA with D^T D z and D^T z apart: three products with D where two are enough."""

    def forward(self, z):
        Dz = F.linear(z, self.D)                            # D z: (B, N, d)
        DtDz = F.linear(Dz, self.D.T)                       # D^T D z: (B, N, d)
        Dtz = F.linear(z, self.D.T)                         # D^T z: (B, N, d)
        threshold = self.eta * self.lam
        change = self.eta * (Dtz - DtDz) - threshold        # the authors add z last, and so do we
        return F.relu(z + change)                           # (B, N, d)


class ReleasedCRATE(CRATE):
    def __init__(self, config):
        if not isinstance(config, CRATEConfig) or config.ista != 'relu' or config.tie_out:
            raise Mistake("the released way is written for CRATE with ista='relu' and a learned W; "
                          'name another row')
        super().__init__(config)
        for layer in self.layers:
            layer.attn.__class__ = ReleasedMSSA
            layer.ista.__class__ = ReleasedISTA


# ---- GPT-2 as nanoGPT computes it (github.com/karpathy/nanoGPT) ---------------------------------

class FusedMHSA(MHSA):
    """Attention by PyTorch's fused kernel alone."""

    def forward(self, z):
        qkv = self.QKV(z)                                   # (B, N, 3 K p)
        qkv = qkv.unflatten(2, (3, self.K, -1))             # (B, N, 3, K, p)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                # (B, K, N, p) each
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        heads = heads.transpose(1, 2).flatten(2)            # heads in a row again: (B, N, K p)
        return self.W(heads)                                # (B, N, d)


class NanoGPT(AoT):
    """GPT-2 with FusedMHSA. Its head is ours, which computes all logits at once, as nanoGPT's."""

    def __init__(self, config):
        is_gpt2 = isinstance(config, AoTConfig) and config.attn == 'mhsa' and config.mlp
        if not is_gpt2:
            raise Mistake("nanoGPT's way is written for GPT-2; name another row")
        super().__init__(config)
        for layer in self.layers:
            layer.attn.__class__ = FusedMHSA
