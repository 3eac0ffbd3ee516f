"""What the official client for Python makes of hetserve: client.py URL KEY. WANT is the continuation of PROMPT by 12
tokens."""
import asyncio
import inspect
import os
import sys

import openai

url, key = sys.argv[1:]
want, prompt = os.environ["WANT"], os.environ["PROMPT"]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
asked = {"model": "demo", "max_tokens": 12, "temperature": 0}


def same(got, wanted, what):
    assert got == wanted, f"{what}: got {got!r}, want {wanted!r}"


same([model.id for model in client.models.list()], ["demo"], "models")
same(client.models.retrieve("demo").id, "demo", "model")

whole = client.completions.create(prompt=prompt, logprobs=2, **asked)
same(whole.choices[0].text, want, "completion")
same(whole.choices[0].finish_reason, "length", "end of the completion")
same(whole.usage.completion_tokens, 12, "tokens")
same("".join(whole.choices[0].logprobs.tokens), want, "scored tokens")
same(max(whole.choices[0].logprobs.top_logprobs[0].values()), whole.choices[0].logprobs.token_logprobs[0], "greedy score")

pieces = list(client.completions.create(prompt=prompt, stream=True, **asked))
same("".join(piece.choices[0].text for piece in pieces), want, "streamed completion")

# The demo's chat template joins messages, so that a conversation is the text itself.
messages = [{"role": "user", "content": prompt}]
chat = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=1, **asked)
text = chat.choices[0].message.content
same(chat.choices[0].message.role, "assistant", "role")
same("".join(token.token for token in chat.choices[0].logprobs.content), text, "scored tokens of a chat")
chunks = list(client.chat.completions.create(messages=messages, stream=True,
                                             stream_options={"include_usage": True}, **asked))
same("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), text, "streamed chat")
same(chunks[-1].usage.completion_tokens, 12, "tokens of a streamed chat")
same(chunks[-2].choices[0].finish_reason, "length", "end of a streamed chat")

stop = text[4:9]
cut = client.chat.completions.create(messages=messages, stop=[stop], **asked)
same(cut.choices[0].message.content, text[: text.index(stop)], "text before a stop sequence")
same(cut.choices[0].finish_reason, "stop", "end at a stop sequence")

drawn = [client.completions.create(prompt=prompt, model="demo", max_tokens=12, temperature=1.5, seed=seed).choices[0].text
         for seed in (1, 1, 2, 3)]
same(drawn[0], drawn[1], "texts of one seed")
assert len(set(drawn)) > 1, f"texts of three seeds: {drawn}"


def refused(kind, status, param, act):
    try:
        act()
    except kind as error:
        same(error.status_code, status, "status")
        same(error.param, param, "param")
        return
    raise AssertionError(f"not refused: {kind}")


refused(openai.BadRequestError, 400, "n", lambda: client.completions.create(prompt=prompt, n=3, **asked))
refused(openai.BadRequestError, 400, "prompt", lambda: client.completions.create(prompt="Woe " * 400, **asked))
refused(openai.NotFoundError, 404, "model", lambda: client.completions.create(prompt=prompt, model="gpt-4"))

# The server knows every field of the client: one that it does not support is refused with a reason.
for path, create in (("/chat/completions", client.chat.completions.create), ("/completions", client.completions.create)):
    for field in inspect.signature(create).parameters:
        if field == "timeout" or field.startswith("extra_"):
            continue
        try:
            client.post(path, body={field: {"x": 1}}, cast_to=object)
        except openai.BadRequestError as error:
            assert error.param != field or "unknown field" not in error.message, f"{path}: {error.message}"

stranger = openai.OpenAI(base_url=url, api_key="wrong", max_retries=0)
refused(openai.AuthenticationError, 401, None, lambda: stranger.models.list())

with client.chat.completions.create(messages=messages, model="demo", max_tokens=200, stream=True) as left:
    next(iter(left))  # and goes away


async def together():
    many = openai.AsyncOpenAI(base_url=url, api_key=key)
    return await asyncio.gather(*(many.completions.create(prompt=prompt, **asked) for _ in range(16)))


for one in asyncio.run(together()):
    same(one.choices[0].text, want, "one of 16 at a time")
