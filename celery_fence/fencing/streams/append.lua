-- APPEND: put one event of an aggregate into the stream, unless a newer token has written to that aggregate.
-- Safe to send again: an event is known by its id, and isn't put there twice while that is remembered.
--
-- All three keys have one hash tag, that of the stream.
-- KEYS  1  <stream>  stream, the events, in the user's own key; never expires
--       2  <prefix>:{tag}:mark:<stream>:<aggregate>  hash, the aggregate's mark (see mark.lua) and `key`, whose tokens
--                                        it compares; lives for the retention after its last use
--       3  <prefix>:{tag}:event:<stream>:<aggregate>:<event id>  hash, an event that is in the stream: `entry`,
--                                        `token`, `owner`; lives for as long as its repeat is to be recognised
-- ARGV  1  'enforce': refuse a stale token; 'shadow': say so and append; 'off': don't look
--       2  token, or '' for none; then nothing is compared
--       3  owner, or ''
--       4  key of the lease
--       5  retention of the mark, ms; 0: for good
--       6  how long the event is remembered, ms
--       7  about how many entries the stream keeps, or '' for all
--       8  fields of the entry: names and values in turn
-- ANSWER  {'appended', entry}          it is in the stream
--         {'repeated', entry}          it had been there already
--         {'stale', entry, token, owner}  a newer token was here (its token and owner); the entry is false where the
--                                      stale one was refused
--         {'other_key', key}           the aggregate's mark counts the tokens of another key; nothing was changed

local stream, mark, memo = KEYS[1], KEYS[2], KEYS[3]
local mode, token, owner, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local retention_ms, remembered_ms, most = ARGV[5], ARGV[6], ARGV[7]

local compares = mode ~= 'off' and token ~= ''
local known = redis.call('HMGET', memo, 'entry', 'token', 'owner')
-- Its own call, repeated after a lost reply: it took effect, whoever has written since.
if known[1] and known[2] == token and known[3] == owner then return {'repeated', known[1]} end

local seen = compares and read_mark(mark) or nil
if seen and seen.key ~= '' and seen.key ~= key then return {'other_key', seen.key} end
local stale = compares and is_stale(tonumber(token), owner, seen)
if stale and mode == 'enforce' then return {'stale', false, seen.text, seen.owner} end

-- The mark first: what fails after it has refused nobody who is newer.
if compares and not stale then
  raise_mark(mark, token, owner, seen, retention_ms)
  redis.call('HSET', mark, 'key', key)
end

local word, entry = 'repeated', known[1]
if not entry then
  local command = {'XADD', stream}
  if most ~= '' then command = {'XADD', stream, 'MAXLEN', '~', most} end
  command[#command + 1] = '*'
  for number = 8, #ARGV do command[#command + 1] = ARGV[number] end
  word, entry = 'appended', redis.call(unpack(command))
  redis.call('HSET', memo, 'entry', entry, 'token', token, 'owner', owner)
  redis.call('PEXPIRE', memo, remembered_ms)
end
if stale then return {'stale', entry, seen.text, seen.owner} end
return {word, entry}
