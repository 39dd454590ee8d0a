-- Put in front of every script of this folder: reading a lease and its counter, and keeping the index.
-- Works with Redis 5 and later and with every Valkey. Touches only keys that the script was given.

-- A number as text without an exponent; Lua's own conversion rounds 16 digits.
-- Each is formatted once: a batch asks for the same few again and again, and that is a tenth of what it costs.
local texts = {}
local function whole(number)
  local text = texts[number]
  if text then return text end
  text = string.format('%.0f', number)
  -- Junk in a lease may read as NaN, which can't be a key of a table.
  if number == number then texts[number] = text end
  return text
end

local function server_time_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
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
  -- For a key of another type an error comes back, which has no fields either.
  local field = redis.pcall(
    'HMGET', lease, 'owner', 'token', 'since', 'ttl', 'facts', 'delivery', 'message', 'lost_delay')
  local lost_delay_ms = tonumber(field[8] or '') or 0
  if not (lost_delay_ms > 0 and lost_delay_ms < 1e15) then lost_delay_ms = 0 end
  local closed, beat_age_ms, too_long_ms = false, 0, nil
  if left >= 0 then
    local ttl_ms = tonumber(field[4] or '') or 0
    beat_age_ms = math.max(ttl_ms + lost_delay_ms - left, 0)
    if ttl_ms > 0 and left > ttl_ms + lost_delay_ms then too_long_ms = ttl_ms + lost_delay_ms end
    closed = lost_delay_ms > 0 and left <= lost_delay_ms
    if not closed then left = left - lost_delay_ms end
  end
  return {
    owner = field[1] or '',
    token = tonumber(field[2] or '') or 0,
    left = left,
    since = tonumber(field[3] or '') or 0,
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

-- How a delivery ended, or nil; `marker` is nil for one of which nothing is remembered. `value` is false where none
-- is kept, `holder` where the end wasn't a decision on a miss. A key of another type is deleted.
local function read_marker(marker)
  if not marker then return nil end
  local field = redis.pcall('HMGET', marker, 'how', 'at', 'by', 'noted', 'value', 'holder')
  if field.err then redis.call('DEL', marker) end
  if not field[1] then return nil end
  return {
    how = field[1], at = tonumber(field[2] or '') or 0, by = field[3], noted = field[4], value = field[5],
    holder = field[6] and cjson.decode(field[6]),
  }
end

-- Remember how a delivery ended, of which nothing is remembered; `...` are more fields.
local function write_marker(marker, how, owner, now_us, retention_ms, ...)
  redis.call('HSET', marker, 'how', how, 'at', whole(now_us), 'by', owner, ...)
  redis.call('PEXPIRE', marker, retention_ms)
end

-- The last token issued, who released last, and up to which token holders are fenced off. Junk reads as unused.
local function read_counter(counter)
  local field = redis.pcall('HMGET', counter, 'token', 'released', 'forced')
  if field.err then
    redis.call('DEL', counter)
    field = {}
  end
  return {
    token = tonumber(field[1] or '') or 0,
    released = field[2] or '',
    forced = tonumber(field[3] or '') or 0,
  }
end

-- How long each index lives that this script has noted something in, ms.
local index_left_ms = {}

-- Note when `key` opens by itself, in `ttl_ms`. The index outlives each of its entries and never stays for ever.
local function note_expiry(index, key, now_us, ttl_ms)
  redis.call('ZADD', index, whole(math.floor(now_us / 1000) + ttl_ms), key)
  local left = index_left_ms[index] or redis.call('PTTL', index)
  if left < ttl_ms then
    left = 2 * ttl_ms
    redis.call('PEXPIRE', index, whole(left))
  end
  index_left_ms[index] = left
end

-- Why the wish of `owner` to keep `token` can't be met, or nil when the key is the owner's or nobody's since.
local function why_gone(held, last, owner, token)
  local newest = last.token
  if held then
    if held.owner ~= owner then return 'taken' end
    if held.closed then return 'expired' end
    newest = math.max(newest, held.token)
  end
  if last.released == owner then return 'released' end
  if last.forced >= token then return 'force_released' end
  if newest > token then return 'superseded' end
  return nil
end
