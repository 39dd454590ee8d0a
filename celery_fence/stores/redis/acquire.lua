-- ACQUIRE: take the key if nobody has it, and issue its token.
-- Safe to send again: the same owner gets the same grant, with the full TTL.
--
-- KEYS  1  fence:{bNN}:lease:<key>  hash, the lease; lives for its TTL
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
--       3  fence:{bNN}:expiries     sorted set, when each lease of the bucket ends; goes when empty
--       4.. are left for the markers of ended deliveries
-- ARGV  1  owner
--       2  TTL, ms
--       3  retention of the counter, ms
--       4  the business key, as it stands in the index
--       5  facts about the owner, JSON
--       6.. are left for the delivery
-- ANSWER  {'granted', token, since in us}   the key is the owner's
--         {'held', '', owner, token, ...}   somebody else has it (see holder_answer)
--         {'ended'}                         this owner has released the key already

local lease, counter, index = KEYS[1], KEYS[2], KEYS[3]
local owner, ttl_ms, retention_ms, key, facts = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local now_us = server_time_us()
local last = read_counter(counter)
if last.released == owner then return {'ended'} end

local held = read_lease(lease, now_us)
if held and held.owner ~= owner then
  if held.left == -1 then
    -- Made by hand: from now on the list shows it too.
    redis.call('ZADD', index, '+inf', key)
    redis.call('PEXPIRE', index, retention_ms)
  end
  return holder_answer('held', '', held)
end

local token, since = math.max(last.token + 1, now_us), now_us
if held then
  token, since = held.token, held.since
end
-- First what needs memory: a server that is full refuses it, as long as nothing has been written.
note_expiry(index, key, now_us, ttl_ms)
redis.call('ZREMRANGEBYSCORE', index, '-inf', whole(math.floor(now_us / 1000)))
redis.call('HSET', counter, 'token', whole(math.max(token, last.token)))
redis.call('PEXPIRE', counter, retention_ms)
redis.call('HSET', lease, 'layout', '1', 'owner', owner, 'token', whole(token), 'since', whole(since),
  'beat', whole(now_us), 'ttl', whole(ttl_ms), 'facts', facts)
redis.call('PEXPIRE', lease, whole(ttl_ms))
return {'granted', whole(token), whole(since)}
