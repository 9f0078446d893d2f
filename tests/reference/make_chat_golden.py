#!/usr/bin/env python3
"""Chats rendered by transformers, for tests/cli/text.bats: make_chat_golden.py >chat_golden.jsonl

Each line: the template, the special tokens, the messages, and the text or the error."""
import json

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TURNS = [
    [{"role": "user", "content": "Hello  there\n"}, {"role": "assistant", "content": " General\tKenobi <b>&"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2? é 中 🙂"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "a part"}]}, {"role": "tool", "content": "x"}],
    [{"role": "assistant", "content": "first"}],
]
TEMPLATES = {
    "blocks": """{% for m in messages %}
    {% if loop.first and m.role != 'system' %}
<|sys|>default
    {% endif %}
    {{- '<|' + m['role'] + '|>' }}
    {% if m.content is string %}{{ m.content | trim }}{% else %}{{ m.content[0].text }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "tokens": "{{ bos_token }}{% for m in messages %}[{{ m.role | upper }}] {{ m.content }}{{ eos_token }}{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}{{ tools is none }}",
    "loops": """{%- set ns = namespace(n=0) -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}{%- break -%}{%- endif -%}
{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}
{%- set ns.n = ns.n + 1 -%}{{ ns.n }}:{% generation %}{{ m.content }}{% endgeneration %};
{%- endfor -%}""",
    "strict": """{% if messages[0].role != 'user' and messages[0].role != 'system' %}{{ raise_exception('a user begins') }}{% endif %}
{%- for m in messages %}{{ m.role[0] }}{{ loop.index0 }} {% endfor %}""",
}

# {{ tools }} as templates print them; chats that may call one
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What it's like in <b>Paris</b> & é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"name": "bare"},
]
CALLING = """{% if tools %}{% for t in tools %}{{ t | tojson }}
{{ t.name or t.function.name }}
{% endfor %}{{ tools | tojson(indent=2) }}{% else %}none{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content or "" }}{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"""
CALL = [
    {"role": "user", "content": "Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}],
    },
    {"role": "tool", "content": "rain"},
]


def main():
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    plain = Tokenizer(models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2}, [], unk_token="<unk>"))
    for name, template in TEMPLATES.items():
        t = PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=template, **tokens)
        for messages in TURNS:
            line = {"name": name, "template": template, "tokens": tokens, "messages": messages}
            try:
                line["text"] = t.apply_chat_template(messages, tokenize=False)
            except Exception as e:
                line["error"] = str(e)
            print(json.dumps(line, ensure_ascii=False))
    t = PreTrainedTokenizerFast(tokenizer_object=plain, chat_template=CALLING, **tokens)
    for messages in TURNS[:1] + [CALL]:
        for tools in TOOLS, None:
            line = {"name": "tools", "template": CALLING, "tokens": tokens, "messages": messages, "tools": tools}
            line["text"] = t.apply_chat_template(messages, tools=tools, tokenize=False)
            print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
