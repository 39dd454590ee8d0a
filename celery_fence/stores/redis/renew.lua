-- RENEW: set the time left of many leases back to their TTL; sets, never adds.
-- A lease that vanished (flush, restart, eviction) is put back with its old token, if nobody holds the key,
-- no newer token was issued, its owner has not released it and it was not force-released.
-- Safe to send again.
--
-- KEYS  for each lease, in order:
--       1  fence:{bNN}:lease:<key>  hash, the lease; lives for its TTL
--       2  fence:{bNN}:token:<key>  hash, the counter; touched only when the lease is put back
--       3  fence:{bNN}:expiries     sorted set, when each lease of the bucket ends
-- ARGV  1  retention of the counter, ms
--       then for each lease, in order: owner, token, since (us since the epoch), TTL (ms), business key, facts (JSON)
-- ANSWER  one for each lease, in order:
--         {'kept'}                            still the owner's
--         {'reinstated'}                      it had vanished and was put back
--         {'gone', reason}                    'released', 'force_released' or 'superseded'
--         {'gone', 'taken', owner, token, ...}  somebody else has it (see holder_answer)

local retention_ms = ARGV[1]

local function renew(lease, counter, index, owner, token, since, ttl_ms, key, facts)
  local now_us = server_time_us()
  local held = read_lease(lease, now_us)
  if held and held.owner == owner and held.token <= tonumber(token) then
    -- First what needs no memory: so a server that is full lets its leases be renewed.
    redis.call('PEXPIRE', lease, ttl_ms)
    note_expiry(index, key, now_us, tonumber(ttl_ms))
    redis.call('HSET', lease, 'token', token, 'beat', whole(now_us), 'ttl', ttl_ms)
    return {'kept'}
  end

  local reason = why_gone(held, read_counter(counter), owner, tonumber(token))
  if reason == 'taken' then return holder_answer('gone', 'taken', held) end
  if reason then return {'gone', reason} end

  -- Does nothing but open the door, as above: one lease of a batch must not keep the others from being renewed.
  redis.call('PEXPIRE', lease, ttl_ms)
  note_expiry(index, key, now_us, tonumber(ttl_ms))
  redis.call('HSET', counter, 'token', token)
  redis.call('PEXPIRE', counter, retention_ms)
  redis.call('HSET', lease, 'layout', '1', 'owner', owner, 'token', token, 'since', since,
    'beat', whole(now_us), 'ttl', ttl_ms, 'facts', facts)
  redis.call('PEXPIRE', lease, ttl_ms)
  return {'reinstated'}
end

local answers = {}
for number = 1, #KEYS / 3 do
  local k, a = 3 * number - 2, 6 * number - 4
  answers[number] = renew(KEYS[k], KEYS[k + 1], KEYS[k + 2], unpack(ARGV, a, a + 5))
end
return answers
