"""What others compute, written plainly, to measure speed against: the operators of CRATE as its
authors' code computes them, and GPT-2 as nanoGPT does. Their results are those of our networks."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from model_aot import AoTConfig
from model_crate import CRATE, ISTA, MSSA, CRATEConfig

from engine.settings import Mistake

# ---- CRATE (github.com/Ma-Lab-Berkeley/CRATE) -----------------------------------------------------------------------


class ReleasedMSSA(MSSA):
    """MSSA as a product, a scale, a softmax and a product, each an operation of its own."""

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1)).transpose(1, 2)                       # (B, K, N, p)
        a = self.drop((torch.matmul(w, w.mT) * w.size(-1) ** -0.5).softmax(-1))         # (B, K, N, N)
        h = torch.matmul(a, w).transpose(1, 2).flatten(2)                               # (B, N, K p)
        return h if self.W is None else self.drop(self.W(h))                            # (B, N, d)


class ReleasedISTA(ISTA):
    """ISTA with D^* D z and D^* z apart: three products with D where two are enough."""

    def forward(self, z):
        a, b = F.linear(F.linear(z, self.D), self.D.T), F.linear(z, self.D.T)           # D^* D z, D^* z: (B, N, d)
        return F.relu(z + (self.eta * (b - a) - self.eta * self.lam))


class ReleasedCRATE(CRATE):
    """CRATE that classifies pictures, its layers computed as in the released code."""

    def __init__(self, config):
        if not isinstance(config, CRATEConfig) or config.task != 'image' or config.tie_out or config.ista != 'relu':
            raise Mistake('the released way is written for CRATE that classifies pictures; name another row')
        super().__init__(config)
        for layer in self.layers:
            layer.attn.__class__, layer.ista.__class__ = ReleasedMSSA, ReleasedISTA


# ---- GPT-2 (github.com/karpathy/nanoGPT) ----------------------------------------------------------------------------

class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)); x (B, N, d)."""

    def __init__(self, c):
        super().__init__()
        self.n_head, d = c.n_head, c.n_embd
        self.ln_1 = nn.LayerNorm(d, bias=c.bias)
        self.attn = nn.ModuleDict({'c_attn': nn.Linear(d, 3 * d, c.bias), 'c_proj': nn.Linear(d, d, c.bias)})
        self.ln_2 = nn.LayerNorm(d, bias=c.bias)
        self.mlp = nn.ModuleDict({'c_fc': nn.Linear(d, 4 * d, c.bias), 'c_proj': nn.Linear(4 * d, d, c.bias)})

    def forward(self, x):
        heads = self.attn['c_attn'](self.ln_1(x)).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(*heads, is_causal=True)                      # (B, K, N, p)
        x = x + self.attn['c_proj'](h.transpose(1, 2).flatten(2))
        return x + self.mlp['c_proj'](F.gelu(self.mlp['c_fc'](self.ln_2(x))))


class NanoGPT(nn.Module):
    """GPT-2 with all logits at once, in float32 for the loss, and no cache of the past. Takes an
    AoTConfig with attn='mhsa' and mlp=True; its weights have nanoGPT's names, so
    `AoT.from_gpt2(self.state_dict(), n_head=..)` is our network with the same results."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        if not (isinstance(c, AoTConfig) and c.task == 'text' and c.attn == 'mhsa' and c.mlp and c.gelu == 'none'
                and not c.dropout and not c.head_dim):
            raise Mistake("nanoGPT's way is written for GPT-2 on text, without dropout; name another row")
        self.transformer = nn.ModuleDict({
            'wte': nn.Embedding(c.vocab_size, c.n_embd), 'wpe': nn.Embedding(c.block_size, c.n_embd),
            'h': nn.ModuleList(Block(c) for _ in range(c.n_layer)), 'ln_f': nn.LayerNorm(c.n_embd, bias=c.bias)})
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        self.lm_head.weight = self.transformer['wte'].weight

    @property
    def layers(self):
        return self.transformer['h']

    def forward(self, x, y=None):
        """Token ids x and next ids y, int64 (B, N) -> (logits (B, N, vocab_size), loss); without y the
        logits of the last position alone, and None."""
        t = self.transformer
        z = t['wte'](x) + t['wpe'](torch.arange(x.size(1), device=x.device))            # (B, N, d)
        for block in self.layers:
            z = block(z)
        z = t['ln_f'](z)
        if y is None:
            return self.lm_head(z[:, -1:]), None
        logits = self.lm_head(z)
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), ignore_index=-1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        """Continues token ids idx (B, N): the whole context is computed again for each token."""
        for _ in range(max_new_tokens):
            logits = self(idx[:, -self.config.block_size:])[0][:, -1]
            idx = torch.cat((idx, torch.multinomial(logits.float().softmax(-1), 1)), 1)
        return idx
