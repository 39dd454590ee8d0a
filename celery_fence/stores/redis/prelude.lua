-- Put in front of every script of this folder: reading a lease and its counter, and keeping the index.
-- Works with Redis 5 and later and with every Valkey. Touches only keys that the script was given.

-- A number as text without an exponent; Lua's own conversion rounds 16 digits.
-- Each is formatted once: a batch asks for the same few again and again, and that is a tenth of what it costs.
local texts = {}
local function whole(number)
  local text = texts[number]
  if text then return text end
  text = string.format('%.0f', number)
  texts[number] = text
  return text
end

-- A number that we may have written, or nil: junk, and what no token, time or duration of ours can be, is none.
local function possible(text)
  local number = tonumber(text or '')
  return number and number >= 0 and number < 2^53 and math.floor(number) or nil
end

local function server_time_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Whether a command of this answer found a key of another type than ours.
local function is_of_another_type(answer)
  return type(answer) == 'table' and answer.err and string.find(answer.err, 'WRONGTYPE', 1, true)
end

-- These fields of a hash, or nil for a key of another type. What else goes wrong is the script's error.
local function fields_of(key, ...)
  local found = redis.pcall('HMGET', key, ...)
  if not found.err then return found end
  if is_of_another_type(found) then return nil end
  return redis.call('HMGET', key, ...)
end

-- Ask an index. It is made of what the leases and records say, so one of another type is deleted, and begun afresh:
-- it must not keep a key closed, nor the other leases of a batch from being renewed.
local function ask_index(command, index, ...)
  local answer = redis.pcall(command, index, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if is_of_another_type(answer) then redis.call('DEL', index) end
  return redis.call(command, index, ...)
end

-- The lease as a table, or nil. A key of another type, or a hash made by hand, is a lease all the same:
-- somebody put it there to keep others out. `left` is in ms, -1 for one that never expires. A lease with a lost
-- delay stays that much longer than its TTL: then it is `closed`, nobody works, and `left` is what is left of that.
-- One that has more time left than any renewal gives was granted before the clock was stepped back: `too_long_ms` is what
-- it may have at most.
-- When it was renewed isn't kept: its TTL ran from then on, so the age of the beat is what is gone of it; 0 where
-- nobody can say.
local function read_lease(lease)
  local left = redis.call('PTTL', lease)
  if left == -2 then return nil end
  local field = fields_of(lease, 'owner', 'token', 'since', 'ttl', 'facts', 'delivery', 'message', 'lost_delay') or {}
  local lost_delay_ms = possible(field[8]) or 0
  local closed, beat_age_ms, too_long_ms = false, 0, nil
  if left >= 0 then
    local ttl_ms = possible(field[4]) or 0
    beat_age_ms = math.max(ttl_ms + lost_delay_ms - left, 0)
    if ttl_ms > 0 and left > ttl_ms + lost_delay_ms then too_long_ms = ttl_ms + lost_delay_ms end
    closed = lost_delay_ms > 0 and left <= lost_delay_ms
    if not closed then left = left - lost_delay_ms end
  end
  return {
    owner = field[1] or '',
    token = possible(field[2]) or 0,
    left = left,
    since = possible(field[3]) or 0,
    beat_age_us = 1000 * beat_age_ms,
    facts = field[5] or '',
    closed = closed,
    too_long_ms = too_long_ms,
    lost_delay_ms = lost_delay_ms,
    delivery = field[6] or '',
    message = field[7] or '',
  }
end

-- owner, token, ttl left (ms, -1: never expires), since (us since the epoch), age of the last beat (us), facts,
-- 1 for one that is closed.
local function holder_answer(word, reason, held)
  return {
    word, reason, held.owner, whole(held.token), held.left, whole(held.since), whole(held.beat_age_us), held.facts,
    held.closed and 1 or 0,
  }
end

-- Write the lease of `claim` (owner, delivery, message, facts, ttl_ms, lost_delay_ms) and let it live for its TTL and
-- its lost delay. What a claim doesn't have takes no room.
local function write_lease(lease, claim, token, since)
  local fields = {
    'layout', '1', 'owner', claim.owner, 'token', token, 'since', since, 'ttl', whole(claim.ttl_ms),
    'facts', claim.facts,
  }
  local function add(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if claim.delivery ~= '' then add('delivery', claim.delivery) end
  if claim.message ~= '' then add('message', claim.message) end
  if claim.lost_delay_ms > 0 then add('lost_delay', whole(claim.lost_delay_ms)) end
  redis.call('HSET', lease, unpack(fields))
  redis.call('PEXPIRE', lease, whole(claim.ttl_ms + claim.lost_delay_ms))
end

-- What a JSON text has, or nil where it is none.
local function decoded(text)
  local readable, value = pcall(cjson.decode, text)
  return readable and type(value) == 'table' and value or nil
end

-- How a delivery ended, or nil; `marker` is nil for one of which nothing is remembered. `value` is false where none
-- is kept, `holder` where the end wasn't a decision on a miss. A key of another type is deleted.
local function read_marker(marker)
  if not marker then return nil end
  local field = fields_of(marker, 'how', 'at', 'by', 'noted', 'value', 'holder')
  if not field then redis.call('DEL', marker) end
  if not field or not field[1] then return nil end
  return {
    how = field[1], at = possible(field[2]) or 0, by = field[3], noted = field[4], value = field[5],
    holder = field[6] and decoded(field[6]) or false,
  }
end

-- Remember how a delivery ended, of which nothing is remembered; `...` are more fields.
local function write_marker(marker, how, owner, now_us, retention_ms, ...)
  redis.call('HSET', marker, 'how', how, 'at', whole(now_us), 'by', owner, ...)
  redis.call('PEXPIRE', marker, retention_ms)
end

-- The last token issued, who released last, and up to which token holders are fenced off. Junk reads as unused.
local function read_counter(counter)
  local field = fields_of(counter, 'token', 'released', 'forced')
  if not field then
    redis.call('DEL', counter)
    field = {}
  end
  return {
    token = possible(field[1]) or 0,
    released = field[2] or '',
    forced = possible(field[3]) or 0,
  }
end

-- Remember these fields for the retention, ms. First what needs no memory: so a server that is full lets its leases be
-- released, and ends be remembered.
local function write_counter(counter, retention_ms, ...)
  local there = redis.call('PEXPIRE', counter, retention_ms)
  redis.call('HSET', counter, ...)
  if there == 0 then redis.call('PEXPIRE', counter, retention_ms) end
end

-- How long each index lives that this script has noted something in, ms.
local index_left_ms = {}

-- Note when `key` opens by itself, in `ttl_ms`. The index outlives each of its entries and never stays for ever.
local function note_expiry(index, key, now_us, ttl_ms)
  ask_index('ZADD', index, whole(math.floor(now_us / 1000) + ttl_ms), key)
  local left = index_left_ms[index] or redis.call('PTTL', index)
  if left < ttl_ms then
    left = 2 * ttl_ms
    redis.call('PEXPIRE', index, whole(left))
  end
  index_left_ms[index] = left
end

-- Whether another owner has the lease because the data of an earlier moment came back (a failover to a replica that
-- lags, a restart from an older file): it was granted before the asker's `token`, so it isn't what came after it. One
-- without a token was made by hand.
local function is_of_the_past(held, owner, token)
  return held and held.owner ~= owner and held.token > 0 and held.token < token
end

-- Why the wish of `owner` to keep `token` can't be met, or nil when the key is the owner's or nobody's since.
local function why_gone(held, last, owner, token)
  local newest = last.token
  if held and not is_of_the_past(held, owner, token) then
    if held.owner ~= owner then return 'taken' end
    if held.closed then return 'expired' end
    newest = math.max(newest, held.token)
  end
  if last.released == owner then return 'released' end
  if last.forced >= token then return 'force_released' end
  if newest > token then return 'superseded' end
  return nil
end
