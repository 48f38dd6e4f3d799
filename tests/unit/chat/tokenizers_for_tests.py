"""Tokenizers and templates with the quirks of real ones."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models

from forebay.chat import Chat, ChatTemplate

SPECIAL = ("<pad>", "<bos>", "<end>", "<user>", "<assistant>", "<tool>", "<system>", "<think>", "</think>")
PLAIN = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# As Qwen3's: thinking before the last question is stripped, and the last message gets a normalized one.
STRIPS_THINKING = """{{ bos_token }}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
    {%- if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == "assistant" and loop.index0 < ns.last and "</think>" in content %}
        {%- set content = content.split("</think>")[-1] %}
    {%- endif %}
    {{- "<" + m.role + ">" + content + "<end>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<assistant>" }}{% endif %}"""


def merging_tokenizer() -> Tokenizer:
    """BPE in which `hello` is one token, and `he` and `llo` are too."""
    pieces = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz ", "he", "ll", "llo", "hello"]
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def merging_chat() -> Chat:
    return Chat(merging_tokenizer().to_str().encode(), ChatTemplate(PLAIN, {"bos_token": "<bos>"}))


def thinking_chat() -> Chat:
    return Chat(merging_tokenizer().to_str().encode(), ChatTemplate(STRIPS_THINKING, {"bos_token": "<bos>"}))
