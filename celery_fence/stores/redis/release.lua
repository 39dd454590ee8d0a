-- RELEASE: free the key if it is still the owner's, and remember who released it.
-- Safe to send again: the same owner gets the same answer. A lease that vanished or expired without a newer
-- token counts as the owner's: nobody has been let in since.
--
-- KEYS  1  fence:{bNN}:lease:<key>  hash, the lease; deleted
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
--       3  fence:{bNN}:expiries     sorted set, when each lease of the bucket ends; goes when empty
--       4.. are left for the markers of ended deliveries
-- ARGV  1  owner
--       2  token of the grant, 0 when the asker doesn't know it
--       3  retention of the counter, ms
--       4  the business key, as it stands in the index
--       5.. are left for how the delivery ended
-- ANSWER  {'released'}                          the key is free, by this owner's release
--         {'gone', reason}                      'force_released' or 'superseded'; nothing was touched
--         {'gone', 'taken', owner, token, ...}  somebody else has it (see holder_answer); nothing was touched

local lease, counter, index = KEYS[1], KEYS[2], KEYS[3]
local owner, token, retention_ms, key = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local last = read_counter(counter)
if last.released == owner then return {'released'} end

local held = read_lease(lease, server_time_us())
if not held or held.owner ~= owner then
  local reason = why_gone(held, last, owner, token)
  if reason == 'taken' then return holder_answer('gone', 'taken', held) end
  if reason then return {'gone', reason} end
end

local newest = math.max(last.token, token, held and held.token or 0)
-- First what needs no memory: so a server that is full lets its leases be released.
redis.call('DEL', lease)
redis.call('ZREM', index, key)
redis.call('HSET', counter, 'token', whole(newest), 'released', owner)
redis.call('PEXPIRE', counter, retention_ms)
return {'released'}
