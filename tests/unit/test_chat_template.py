from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from specfast.chat_template import ChatTemplate
from tests.unit.test_tokenizer import byte_level_backend

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say <b> & \u00e9."},
    {"role": "assistant", "content": "b\n"},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}\n<{{ m['role'] }}>{{ m['content'] | trim }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}"
    "{{ m | tojson }}{{ m | tojson(indent=2) }}{{ eos_token }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}  {% set ns.n = ns.n + 1 %}\n"
    "    {%- generation -%}{{ m.content }}{% endgeneration %}\n{% endfor %}{{ ns.n }}",
    "{{ strftime_now('%Y-%m') }}{% if tools %}tools{% endif %}{{ documents is none }}",
    "{{ messages | map(attribute='role') | join(',') }}{{ not add_generation_prompt }}",
]


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("source", TEMPLATES)
def test_renders_as_transformers_does(source, generation):
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend(), **SPECIAL)
    expected = theirs.apply_chat_template(
        MESSAGES, chat_template=source, add_generation_prompt=generation, tokenize=False
    )
    assert ChatTemplate(source, SPECIAL).render(MESSAGES, generation) == expected


def test_a_template_may_refuse():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ValueError, match="roles must alternate"):
        template.render(MESSAGES, True)


def test_a_broken_template_is_refused():
    with pytest.raises(ValueError, match="no valid template"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize("messages", [["hi"], [{"content": "hi"}]])
def test_a_message_needs_a_role(messages):
    with pytest.raises(ValueError, match="'role'"):
        ChatTemplate("", {}).render(messages, True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append({}) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_templates_run_in_a_sandbox(source):
    with pytest.raises(ValueError, match="refuses"):
        ChatTemplate(source, {}).render(MESSAGES, True)
