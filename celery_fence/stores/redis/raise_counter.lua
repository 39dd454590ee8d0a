-- RAISE COUNTER: the next token of the key is to be above one that was seen where state is written. Only its holder
-- may say so, of the lease that it has at this moment. Safe to send again.
--
-- KEYS  1  fence:{bNN}:lease:<key>  hash, the lease
--       2  fence:{bNN}:token:<key>  hash, the counter; lives for the retention after its last use
-- ARGV  1  owner
--       2  token of its grant
--       3  the token that was seen
--       4  retention of the counter, ms
-- ANSWER  {'raised'}                            the next token is greater than ARGV 3
--         {'gone', reason}                      'released', 'force_released', 'superseded' or 'expired'
--         {'gone', 'taken', owner, token, ...}  somebody else has the key (see holder_answer)

local lease, counter = KEYS[1], KEYS[2]
local owner, token, seen, retention_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local held, last = read_lease(lease), read_counter(counter)
if held and held.owner == owner and held.token == token and not held.closed then
  write_counter(counter, retention_ms, 'token', whole(math.max(last.token, seen)))
  return {'raised'}
end
local reason = why_gone(held, last, owner, token)
if reason == 'taken' then return holder_answer('gone', 'taken', held) end
return {'gone', reason or 'expired'}
