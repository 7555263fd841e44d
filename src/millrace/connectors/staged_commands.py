"""Stages Redis commands in lists on the server, which executes each together with its removal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.api.component import Component
from millrace.connectors.settings import optional_module
from millrace.connectors.staging import Staging, gone, staged_name

GONE = "MILLRACE-GONE"
WORDS_AT_ONCE = 5000  # maximum number of words of the commands that one call executes: it blocks the server

# KEYS: marks and list of a task in an epoch, set of all of them. ARGV: the number of commands that the task knows to be
# staged, the member of the set. Trims the list to that number: a call whose answer was lost may have been executed.
_FIT = f"""
local base = tonumber(redis.call('HGET', KEYS[1], 'base') or '0')
local wanted = tonumber(ARGV[1])
local have = base + redis.call('LLEN', KEYS[2])
if have < wanted then return redis.error_reply('{GONE} ' .. have .. ' of ' .. wanted) end
if base == wanted then redis.call('DEL', KEYS[2])
elseif have > wanted then redis.call('LTRIM', KEYS[2], 0, wanted - base - 1) end
redis.call('SADD', KEYS[3], ARGV[2])
"""

# ARGV from 3: the commands.
_ADD = _FIT + """
for i = 3, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
return #ARGV - 2
"""

# ARGV 3: the wave. Returns the number of commands that are not executed.
_PREPARE = _FIT + """
redis.call('HSET', KEYS[1], ARGV[3], wanted)
return wanted - base
"""

# KEYS: marks, list, target, hash of the waves published last. ARGV: the wave, the maximum number of words, the task, the epoch.
# Returns the number of commands left to execute. A command that the server refuses stays in the list, and those before it
# do not: nothing is executed twice.
_PUBLISH = f"""
local function words(text)
  local parts, at = {{}}, 1
  while at <= #text do
    local colon = string.find(text, ':', at, true)
    local size = tonumber(string.sub(text, at, colon - 1))
    parts[#parts + 1] = string.sub(text, colon + 1, colon + size)
    at = colon + size + 1
  end
  return parts
end
local marks = redis.call('HGETALL', KEYS[1])
local base, upto, done = 0, 0, {{}}
for i = 1, #marks, 2 do
  local wave, count = tonumber(marks[i]), tonumber(marks[i + 1])
  if marks[i] == 'base' then base = count
  elseif wave <= tonumber(ARGV[1]) then
    upto = math.max(upto, count)
    done[#done + 1] = marks[i]
  end
end
local moved = 0
while base < upto do
  if moved >= tonumber(ARGV[2]) then return upto - base end
  local staged = redis.call('LINDEX', KEYS[2], 0)
  if not staged then return redis.error_reply('{GONE} ' .. base .. ' of ' .. upto) end
  local command = words(staged)
  table.insert(command, 2, KEYS[3])
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then return reply end
  redis.call('LPOP', KEYS[2])
  base = redis.call('HINCRBY', KEYS[1], 'base', 1)
  moved = moved + #command
end
for _, wave in ipairs(done) do redis.call('HDEL', KEYS[1], wave) end
if #done > 0 then redis.call('HSET', KEYS[4], ARGV[3], ARGV[4] .. ':' .. ARGV[1]) end
return 0
"""


class StagedCommands(Staging):
    """`millrace:staged:{<topology>+<component>}` is the set of `<task>:<epoch>`; `...:<task>:<epoch>` the list of commands;
    `...:<task>:<epoch>:marks` a hash with the number of commands staged when each wave was prepared and, as `base`, the number
    that were executed and removed from the list; `...:published` a hash with the `<epoch>:<wave>` that each task published
    last.

    A command is stored without its key, which is `target`, as netstrings (`3:abc`): Redis' own decoders corrupt bytes.
    """

    def __init__(self, client: Any, target: str, owner: Component) -> None:
        self._redis, self._target, self._owner = client, target, owner
        self._refused = optional_module("redis", "redis", owner).exceptions.ResponseError
        self._all = f"millrace:staged:{{{staged_name(owner)}}}"
        self._published = f"{self._all}:published"
        self._add, self._prepare, self._publish = (client.register_script(script) for script in (_ADD, _PREPARE, _PUBLISH))
        self._counted: tuple[int, int] | None = None  # an epoch, and the number of commands staged in it

    def add(self, commands: Iterable[Sequence[Any]]) -> None:
        """Stages the commands of one chunk, all of them or none. After a failure the next ones replace them."""
        count = self._known()
        staged = self._fitted(self._add, count, [_netstrings(command) for command in commands])
        self._counted = self._owner.epoch, count + staged

    def prepare(self, wave: int) -> list[str]:
        count = self._known()
        return [_described(count)] if self._fitted(self._prepare, count, [wave]) else []

    def missing(self, task: int, epoch: int, wave: int, tokens: Sequence[str]) -> list[str]:
        published = self._redis.hget(self._published, str(task))
        if published is not None and tuple(map(int, published.decode().split(":"))) >= (epoch, wave):
            return []
        marks, commands = self._keys(task, epoch)
        with self._redis.pipeline(transaction=True) as pipe:
            base, length = pipe.hget(marks, "base").llen(commands).execute()
        have = int(base or 0) + length
        return [token for token in tokens if have < _counted(token)]

    def publish(self, task: int, epoch: int, wave: int) -> None:
        marks, commands = self._keys(task, epoch)
        keys = [marks, commands, self._target, self._published]
        while self._call(self._publish, keys, [wave, WORDS_AT_ONCE, task, epoch]):
            continue

    def discard(self, task: int, epoch: int) -> None:
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(*self._keys(task, epoch))
            pipe.srem(self._all, f"{task}:{epoch}")
            pipe.execute()

    def staged(self) -> list[tuple[int, int]]:
        pairs = (member.decode().split(":") for member in self._redis.smembers(self._all))
        return [(int(task), int(epoch)) for task, epoch in pairs]

    def close(self) -> None:
        """Does nothing: the sink closes the client."""

    def _known(self) -> int:
        if self._counted is None or self._counted[0] != self._owner.epoch:
            marks, commands = self._keys(self._owner.task_index, self._owner.epoch)
            with self._redis.pipeline(transaction=True) as pipe:
                base, length = pipe.hget(marks, "base").llen(commands).execute()
            self._counted = self._owner.epoch, int(base or 0) + length
        return self._counted[1]

    def _fitted(self, script: Any, count: int, arguments: list[Any]) -> int:
        task, epoch = self._owner.task_index, self._owner.epoch
        return self._call(script, [*self._keys(task, epoch), self._all], [count, f"{task}:{epoch}", *arguments])

    def _call(self, script: Any, keys: list[str], arguments: list[Any]) -> int:
        try:
            return int(script(keys=keys, args=arguments))
        except self._refused as error:
            if GONE in str(error):
                raise gone(self._owner, f"Redis under {self._all}") from error
            raise

    def _keys(self, task: int, epoch: int) -> tuple[str, str]:
        commands = f"{self._all}:{task}:{epoch}"
        return f"{commands}:marks", commands


def _described(count: int) -> str:
    """The token of the commands staged in an epoch so far."""
    return f"{count} commands"


def _counted(token: str) -> int:
    return int(token.partition(" ")[0])


def _netstrings(words: Sequence[Any]) -> bytes:
    parts = []
    for word in words:
        data = word if isinstance(word, bytes) else (word if isinstance(word, str) else repr(word)).encode()
        parts.append(b"%d:%s" % (len(data), data))
    return b"".join(parts)
