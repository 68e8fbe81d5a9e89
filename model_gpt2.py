"""GPT-2: the network of model_aot.py with three switches set: attn='mhsa', mlp=True, bias=True. The
defaults of its sizes are those of GPT-2 Base. OpenAI's weights need gelu='tanh' too.

Alec Radford, Jeffrey Wu, Rewon Child, David Luan, Dario Amodei, Ilya Sutskever. "Language Models
are Unsupervised Multitask Learners", OpenAI, 2019. The AoT paper compares with it in section 4.2.
All that it computes stands in model_aot.py.
"""
from dataclasses import dataclass

from model_aot import AoT, AoTConfig


@dataclass
class GPT2Config(AoTConfig):
    attn: str = 'mhsa'
    mlp: bool = True
    bias: bool = True


Network, Config = AoT, GPT2Config
