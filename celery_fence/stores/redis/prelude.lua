-- Put in front of every script of this folder: reading a lease and its counter, and keeping the index.
-- Works with Redis 5 and later and with every Valkey. Touches only keys that the script was given.

-- A number as text without an exponent; Lua's own conversion rounds 16 digits.
local function whole(number)
  return string.format('%.0f', number)
end

local function server_time_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The lease as a table, or nil. A key of another type, or a hash made by hand, is a lease all the same:
-- somebody put it there to keep others out. `left` is in ms, -1 for one that never expires.
local function read_lease(lease, now_us)
  local left = redis.call('PTTL', lease)
  if left == -2 then return nil end
  -- For a key of another type an error comes back, which has no fields either.
  local field = redis.pcall('HMGET', lease, 'owner', 'token', 'since', 'beat', 'facts')
  local beat = tonumber(field[4] or '') or now_us
  return {
    owner = field[1] or '',
    token = tonumber(field[2] or '') or 0,
    left = left,
    since = tonumber(field[3] or '') or 0,
    beat_age = math.max(now_us - beat, 0),
    facts = field[5] or '',
  }
end

-- owner, token, ttl left (ms, -1: never expires), since (us since the epoch), age of the last beat (us), facts.
local function holder_answer(word, reason, held)
  return {word, reason, held.owner, whole(held.token), held.left, whole(held.since), whole(held.beat_age), held.facts}
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

-- Note when the lease of `key` ends. The index outlives each of its entries and never stays for ever.
local function note_expiry(index, key, now_us, ttl_ms)
  redis.call('ZADD', index, whole(math.floor(now_us / 1000) + ttl_ms), key)
  if redis.call('PTTL', index) < ttl_ms then
    redis.call('PEXPIRE', index, whole(2 * ttl_ms))
  end
end

-- Why the wish of `owner` to keep `token` can't be met, or nil when the key is the owner's or nobody's since.
local function why_gone(held, last, owner, token)
  local newest = last.token
  if held then
    if held.owner ~= owner then return 'taken' end
    newest = math.max(newest, held.token)
  end
  if last.released == owner then return 'released' end
  if last.forced >= token then return 'force_released' end
  if newest > token then return 'superseded' end
  return nil
end
