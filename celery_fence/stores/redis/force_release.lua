-- FORCE RELEASE: free the key whoever has it, and fence that holder off for good.
-- The counter is raised above every token there was, so the old holder can't be put back by its renewal
-- and the next token is higher. Also on a key that looks free: its lease may only have vanished.
--
-- KEYS  1  fence:{bNN}:lease:<key>  the lease, of whatever type; deleted
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
--       3  fence:{bNN}:expiries     sorted set, when each key of the bucket opens; goes when empty
-- ARGV  1  '1': only if the holder is the owner of ARGV 2; '0': whoever it is
--       2  owner
--       3  retention of the counter, ms
--       4  the business key, as it stands in the index
-- ANSWER  {'force_released'}                         the key was free already
--         {'force_released', '', owner, token, ...}  who was fenced off (see holder_answer)
--         {'held', '', owner, token, ...}            somebody else than ARGV 2 has it; nothing was touched

local lease, counter, index = KEYS[1], KEYS[2], KEYS[3]
local only, owner, retention_ms, key = ARGV[1] == '1', ARGV[2], ARGV[3], ARGV[4]

local now_us = server_time_us()
local held = read_lease(lease)
if held and only and held.owner ~= owner then return holder_answer('held', '', held) end

local last = read_counter(counter)
local fence = whole(math.max(last.token + 1, (held and held.token or 0) + 1, now_us))
write_counter(counter, retention_ms, 'token', fence, 'forced', fence)
-- Last what frees the key: where a right is missing, it isn't free before its holder is fenced off.
redis.call('DEL', lease)
ask_index('ZREM', index, key)
if held then return holder_answer('force_released', '', held) end
return {'force_released'}
