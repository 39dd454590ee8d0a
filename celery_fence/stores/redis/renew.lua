-- RENEW: set the time left of many leases back to their TTL; sets, never adds. One that expired is gone for good
-- while its lost delay keeps the key closed.
-- A lease that vanished (flush, restart, eviction) is put back with its old token, if nobody holds the key,
-- no newer token was issued, its owner has not released it and it was not force-released. So is one in whose place an
-- older one came back, of an owner whose token is smaller: data of an earlier moment.
-- Safe to send again.
-- What it costs counts: a process has thousands of leases, and nearly all are as they were left. For those only what
-- tells so is read, and nothing but the time left is written.
--
-- KEYS  for each lease, in order:
--       1  fence:{bNN}:lease:<key>  hash, the lease; lives for its TTL and its lost delay
--       2  fence:{bNN}:token:<key>  hash, the counter; read where the lease isn't the owner's, written to put it back
--       3  fence:{bNN}:expiries     sorted set, when each key of the bucket opens
-- ARGV  1  retention of the counter, ms
--       then for each lease, in order: owner, token, since (us since the epoch), TTL (ms), business key, facts (JSON),
--          lost delay (ms), delivery, message
-- ANSWER  one for each lease, in order:
--         {'kept'}                            still the owner's
--         {'reinstated'}                      it had vanished and was put back
--         {'gone', reason}                    'released', 'force_released', 'superseded' or 'expired'
--         {'gone', 'taken', owner, token, ...}  somebody else has it (see holder_answer)

local retention_ms = ARGV[1]
local now_us = server_time_us()

-- Whether the lease is as this claim and token left it, and not closed.
local function is_unchanged(lease, owner, token, ttl, lost_delay)
  local field = redis.pcall('HMGET', lease, 'owner', 'token', 'ttl', 'lost_delay')
  if field[1] ~= owner or field[2] ~= token or field[3] ~= ttl then return false end
  if (field[4] or '0') ~= lost_delay then return false end
  return lost_delay == '0' or redis.call('PTTL', lease) > tonumber(lost_delay)
end

local function prolong(lease, index, key, stays_ms)
  -- First what needs no memory: so a server that is full lets its leases be renewed.
  redis.call('PEXPIRE', lease, whole(stays_ms))
  note_expiry(index, key, now_us, stays_ms)
end

local function renew(lease, counter, index, claim, token, since, key)
  local held = read_lease(lease)
  if held and held.owner == claim.owner and held.token <= tonumber(token) and not held.closed then
    prolong(lease, index, key, claim.ttl_ms + held.lost_delay_ms)
    redis.call('HSET', lease, 'token', token, 'ttl', whole(claim.ttl_ms))
    return {'kept'}
  end

  local reason = why_gone(held, read_counter(counter), claim.owner, tonumber(token))
  if reason == 'taken' then return holder_answer('gone', 'taken', held) end
  if reason then return {'gone', reason} end

  if held then redis.call('DEL', lease) end
  -- Does nothing but open the door, as above: one lease of a batch must not keep the others from being renewed.
  prolong(lease, index, key, claim.ttl_ms + claim.lost_delay_ms)
  write_counter(counter, retention_ms, 'token', token)
  write_lease(lease, claim, token, since)
  return {'reinstated'}
end

local kept = {'kept'}
local answers = {}
for number = 1, #KEYS / 3 do
  local k, a = 3 * number - 2, 9 * number - 7
  local lease, counter, index = KEYS[k], KEYS[k + 1], KEYS[k + 2]
  local owner, token, ttl, key, lost_delay = ARGV[a], ARGV[a + 1], ARGV[a + 3], ARGV[a + 4], ARGV[a + 6]
  if is_unchanged(lease, owner, token, ttl, lost_delay) then
    prolong(lease, index, key, tonumber(ttl) + tonumber(lost_delay))
    answers[number] = kept
  else
    local claim = {
      owner = owner, ttl_ms = tonumber(ttl), facts = ARGV[a + 5], lost_delay_ms = tonumber(lost_delay),
      delivery = ARGV[a + 7], message = ARGV[a + 8],
    }
    answers[number] = renew(lease, counter, index, claim, token, ARGV[a + 2], key)
  end
end
return answers
