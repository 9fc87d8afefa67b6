"""
How a text is cut into words before byte-pair merges, by the name in `tokenizer.ggml.pre`.

The expressions are those that the models were trained with. They are applied one after another: each cuts the pieces
that the one before left, and what an expression does not match stays a piece of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreTokenizer:
    """
    The words of a family of models.

    `whole_words`: a word that is a token is taken as that token, whatever the merges would make of it.
    `add_bos`: a text starts with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# A word in lower case with capitals before it, or in capitals with lower case after.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAMEL_LOWER = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAMEL_UPPER = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CAMEL_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CAMEL_LOWER}|{_CAMEL_UPPER}|\p{{N}}|{_CAMEL_SYMBOLS}|{_SPACES}"
_GPT4O = rf"{_CAMEL_LOWER}{_CONTRACTION}?|{_CAMEL_UPPER}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CAMEL_SYMBOLS}|{_SPACES}"
_DEEPSEEK_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The cased letters that the model's authors listed, range by range.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)

_PUNCTUATION_APART = r"[\p{P}\$\+<=>\^~\|]+"
_DEFAULT = PreTokenizer((_PUNCTUATION_APART, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_WORDS = PreTokenizer((_GPT2,))
_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_WORDS = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_WORDS = PreTokenizer((_QWEN2,))
_GPT4O_WORDS = PreTokenizer((_GPT4O,))
_DEEPSEEK_V3_WORDS = PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3))

PRE_TOKENIZERS = {
    "default": _DEFAULT,
    "gpt-2": _WORDS,
    "phi-2": _WORDS,
    "mpt": _WORDS,
    "olmo": _WORDS,
    "exaone4": _WORDS,
    "trillion": _WORDS,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "command-r": _DIGITS_APART,
    "smollm": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "exaone": _DIGITS_APART,
    "minerva-7b": _DIGITS_APART,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "llama3": _LLAMA3_WORDS,
    "llama-v3": _LLAMA3_WORDS,
    "llama-bpe": _LLAMA3_WORDS,
    "falcon3": _LLAMA3_WORDS,
    "falcon-h1": _LLAMA3_WORDS,
    "pixtral": _LLAMA3_WORDS,
    "lfm2": _LLAMA3_WORDS,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN2_WORDS,
    "deepseek-r1-qwen": _QWEN2_WORDS,
    "stablelm2": _QWEN2_WORDS,
    "megrez": _QWEN2_WORDS,
    "hunyuan": _QWEN2_WORDS,
    "solar-open": _QWEN2_WORDS,
    "grok-2": _QWEN2_WORDS,
    "qwen35": PreTokenizer((_QWEN35,)),
    "gpt-4o": _GPT4O_WORDS,
    "llama4": _GPT4O_WORDS,
    "kanana2": _GPT4O_WORDS,
    "minimax-m2": _GPT4O_WORDS,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", _DEEPSEEK_PUNCTUATION, r"\s+$", _DEEPSEEK_HAN, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}")),
    "deepseek-v3": _DEEPSEEK_V3_WORDS,
    "hunyuan-dense": _DEEPSEEK_V3_WORDS,
}
